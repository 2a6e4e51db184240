"""The kubelet's gRPC APIs on its Unix sockets: the device plugin's, and the list of who holds what.

`make protos` generates the modules that end in `_pb2` from the `.proto` files beside them.
"""
