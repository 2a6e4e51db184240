"""Turns an allocation into one container's files: identifies the container, checks room, writes files and CDI spec.

Nothing here uses gRPC or Kubernetes' API, so that it serves other front ends than the device plugin, too.
"""
