"""The ways in which a pod can ask for a piece of a GPU, one module each."""
