"""What people ask about GPUs and pods that wait, answered on a workstation from the API server's objects."""
