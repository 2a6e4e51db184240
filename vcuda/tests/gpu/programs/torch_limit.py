"""Prints how much memory PyTorch sees, and what an allocation of as much again raises."""

from __future__ import annotations

import sys

import torch

total = torch.cuda.mem_get_info()[1]
try:
    torch.empty(total, dtype=torch.uint8, device="cuda")
except RuntimeError as error:
    sys.stdout.write(f"{total} {type(error).__name__}\n")
else:
    sys.stdout.write(f"{total} granted\n")
