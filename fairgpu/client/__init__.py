"""The client commands of `fairgpu`, which talk to a running timekeeper: budgets, grants, sessions, usage."""
