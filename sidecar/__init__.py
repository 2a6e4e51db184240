"""The reporter that runs beside the containers of a GPU pod: reads what they used, tells the timekeeper.

It runs from a zip archive under `python -I -S` and so imports nothing but the standard library and itself.
Its values are named tuples: importing dataclasses would cost a megabyte and a half in every GPU pod of the cluster.
"""
