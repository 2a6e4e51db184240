"""Prints how far PyTorch gets: NVML, and then NVIDIA's runtime."""

from __future__ import annotations

import os

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
import torch
from reach import step

step("import", lambda: torch.__version__)
step("devices, by NVML", torch.cuda.device_count)
step("available, by NVML", torch.cuda.is_available)
step("init", torch.cuda.init)
step("tensor", lambda: torch.ones(10, device="cuda").sum())
step("stream", lambda: torch.cuda.Stream().synchronize())
step("pinned memory", lambda: torch.ones(10).pin_memory().sum())
