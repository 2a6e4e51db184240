"""One module for each vendor of GPUs, which implements `nodeagent.offer.Vendor`."""
