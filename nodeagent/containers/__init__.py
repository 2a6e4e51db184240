"""From an allocation to what one container is given: who it is, whether it fits, its files and its CDI spec.

Nothing here speaks gRPC or Kubernetes' API, so that another front than the device plugin can stand before it.
"""
