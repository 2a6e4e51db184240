"""How long a pod held how much of which GPU, and what that costs: pure functions from pods to amounts."""
