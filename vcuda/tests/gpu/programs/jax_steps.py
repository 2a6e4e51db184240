"""JAX: XLA's own allocator and streams."""

from __future__ import annotations

import os

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import jax
import jax.numpy as jnp
from steps import step


def product() -> int:
    """Compiled by XLA."""
    return int(jax.jit(lambda value: (value @ value).sum())(jnp.ones((1024, 1024))))


def differentiated() -> int:
    """A gradient."""
    return int(jax.grad(lambda value: (value**2).sum())(jnp.ones(1 << 16)).sum())


step("devices", lambda: len(jax.devices("gpu")))
for function in (product, differentiated):
    step(function.__name__, function)
