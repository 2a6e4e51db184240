"""Turns an allocation into one container's files: identifies the container, checks room, writes files and CDI spec.

These modules use neither gRPC nor Kubernetes' API, so that callers other than the device plugin can use them, too.
"""
