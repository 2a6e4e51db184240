"""One module for each vendor of GPUs; what the agent asks of it is `nodeagent.offer.Vendor`."""
