"""The part of the `fairgpu` command that talks to a running timekeeper: budgets, grants, sessions."""
