"""PyTorch: kernels, streams, graphs, threads that end while another captures, pools, memory of another process."""

from __future__ import annotations

import os
import threading

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
import torch
from steps import step

SIDE = 2048


def product() -> float:
    """The same numbers each time, and so the same sum."""
    torch.manual_seed(7)
    one, other = (torch.randn(SIDE, SIDE, device="cuda") for _ in range(2))
    return round((one @ other).abs().mean().item(), 2)


def streams() -> int:
    """Two streams, the second behind the first by an event."""
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    value = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    for _ in range(100):
        with torch.cuda.stream(first):
            value.add_(1)
        second.wait_stream(first)
        with torch.cuda.stream(second):
            value.mul_(1)
        first.wait_stream(second)
    torch.cuda.synchronize()
    return int(value[0].item())


def graph() -> int:
    """Captured in the strictest mode while threads that launched end, and replayed."""
    value = torch.zeros(1 << 20, device="cuda")
    recorded = torch.cuda.CUDAGraph()

    def launches() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.ones(64, device="cuda").add_(1)

    threads = [threading.Thread(target=launches) for _ in range(8)]
    for thread in threads:
        thread.start()
    torch.cuda.synchronize()
    with torch.cuda.graph(recorded):
        for _ in range(20):
            value.add_(1)
    for thread in threads:
        thread.join()
    for _ in range(50):
        recorded.replay()
    torch.cuda.synchronize()
    return int(value[0].item())


def pieces() -> int:
    """Segments that grow, and shrink again."""
    held = [torch.ones(n << 20, dtype=torch.uint8, device="cuda") for n in (1, 30, 200, 700)]
    total = sum(int(each[-1].item()) for each in held)
    held.clear()
    torch.cuda.empty_cache()
    return total


def copies() -> int:
    """To the device and back, from pinned memory, without waiting."""
    source = torch.arange(1 << 22, dtype=torch.int32).pin_memory()
    there = source.to("cuda", non_blocking=True)
    back = there.to("cpu")
    return int((back == source).sum().item())


def trained() -> float:
    """A step of backpropagation on its own threads."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).cuda()
    loss = model(torch.ones(64, 256, device="cuda")).square().mean()
    loss.backward()
    return round(float(loss.item()), 3)


def jitted() -> int:
    """A kernel that Triton compiles and launches."""
    compiled = torch.compile(lambda value: value * 2 + 1)
    return int(compiled(torch.ones(1 << 16, device="cuda")).sum().item())


step("available", torch.cuda.is_available)
step("devices", torch.cuda.device_count)
step("name", lambda: torch.cuda.get_device_name(0).replace(" ", "-"))
for function in (product, streams, graph, pieces, copies, trained, jitted):
    step(function.__name__, function)
