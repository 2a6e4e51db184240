"""The sidecar of a GPU pod: it reports the GPU usage of the pod's containers to the timekeeper.

It runs from a zip archive under `python -I -S`, so it imports only the standard library and its own modules.

Its values are named tuples: importing dataclasses would cost a megabyte and a half in every GPU pod of the cluster.
"""
