"""Who is asking, and what they may do: pods by their tokens, people and services by the cluster's own rules."""
