"""The agent of a GPU node: it offers the node's GPUs, divides their time between containers, and writes their files."""
