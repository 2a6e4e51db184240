"""Finds names of NVIDIA's GPUs that contain one another: an author who names the shorter one is warned.

The names are the driver's (https://github.com/NVIDIA/open-gpu-kernel-modules#compatible-gpus), without the leading
"NVIDIA", and without the form and the memory at the end.
"""

from __future__ import annotations

from typing import Final

KNOWN_MODELS: Final = (
    "A2",
    "A10",
    "A10G",
    "A10M",
    "A16",
    "A30",
    "A40",
    "A100",
    "A800",
    "B200",
    "B300",
    "GB200",
    "GB300",
    "GH200",
    "H20",
    "H100",
    "H200",
    "H800",
    "L2",
    "L4",
    "L20",
    "L40",
    "L40S",
    "Tesla M4",
    "Tesla M40",
    "Tesla P4",
    "Tesla P40",
    "Tesla P100",
    "Tesla T4",
    "T4G",
    "T400",
    "Tesla V100",
    "Tesla V100S",
    "GeForce RTX 3080",
    "GeForce RTX 3080 Ti",
    "GeForce RTX 3090",
    "GeForce RTX 3090 Ti",
    "GeForce RTX 4080",
    "GeForce RTX 4080 SUPER",
    "GeForce RTX 4090",
    "GeForce RTX 4090 D",
    "GeForce RTX 5090",
    "GeForce RTX 5090 D",
    "RTX 6000",
    "RTX 6000 Ada Generation",
    "RTX A2000",
    "RTX A4000",
    "RTX A5000",
    "RTX A6000",
    "TITAN X",
    "TITAN Xp",
)

_MAKERS = ("nvidia ", "tesla ", "quadro ", "geforce ")


def other_models(name: str) -> tuple[str, ...]:
    """Returns the other known GPU models whose names contain the name of a given model, such as `A100` for `A10`.

    The case of letters does not matter. The result is empty if the given name is not the name of a known model.

    Args:
        name: the name of a model, as a pod's author wrote it.
    """
    written = name.strip().lower()
    bare = _bare(written)
    if not any(_bare(model.lower()) == bare for model in KNOWN_MODELS):
        return ()
    return tuple(
        model for model in KNOWN_MODELS if _bare(model.lower()) != bare and written in f"nvidia {model.lower()}"
    )


def _bare(name: str) -> str:
    for maker in _MAKERS:
        name = name.removeprefix(maker)
    return name
