"""The sidecar of a GPU pod: it reports the GPU usage of the pod's containers to the timekeeper.

It runs from a zip archive under `python -I -S` and so imports nothing but the standard library and itself.

Its values are named tuples: importing dataclasses would cost a megabyte and a half in every GPU pod of the cluster.
"""
