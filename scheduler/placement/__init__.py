"""Places requests on devices. It knows no HTTP and no Kubernetes objects: devices, shares and requests go in."""
