"""Places requests on devices: pure computation on devices, shares and requests, without HTTP or Kubernetes objects."""
