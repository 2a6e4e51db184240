"""The client commands of `fairgpu`, which talk to a timekeeper: budgets, grants, corrections, sessions, usage."""
