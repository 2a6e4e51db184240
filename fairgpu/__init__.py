"""The vocabulary that all of FairGPU shares: requests, dialects, units, allocations, budget states."""
