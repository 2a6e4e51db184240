"""Multiplies matrices for so many seconds and prints how many a second were completed; begins with a line of input."""

from __future__ import annotations

import sys
import time

import torch

GROUP = 8
"""Products behind which the program looks how far the GPU has come; two groups are in flight."""

one, other = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
for _ in range(20):
    one @ other
torch.cuda.synchronize()
sys.stdout.write("ready\n")
sys.stdout.flush()
sys.stdin.readline()
began, done = time.monotonic(), 0
behind = torch.cuda.Event()
behind.record()
while time.monotonic() - began < float(sys.argv[1]):
    for _ in range(GROUP):
        one @ other
    ahead = torch.cuda.Event()
    ahead.record()
    behind.synchronize()
    behind = ahead
    done += GROUP
behind.synchronize()
sys.stdout.write(f"{done / (time.monotonic() - began)}\n")
