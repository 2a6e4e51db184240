"""The sidecar of a GPU pod: it reports the GPU usage of the pod's containers to the timekeeper.

The sidecar runs from a zip archive under `python -I -S`, so it imports only the standard library and its own modules.

The sidecar's values are named tuples: to import dataclasses would cost 1.5 MB of memory in every GPU pod.
"""
