"""The vocabulary that all parts of FairGPU share: requests, dialects, units, allocations, budget states."""
