"""The code that all parts of FairGPU share: requests, dialects, budget states, settings, servers, the cluster's API.

The client's commands are here, too.
"""
