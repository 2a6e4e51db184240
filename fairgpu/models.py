"""Matches names of GPU models: to a pod's choice of models, and to the keys of a price list.

A choice matches each model whose name contains it, whatever the case of the letters, as HAMi's `use-gputype` does:
`a10` matches an A100, too. A key of a price list matches whole words only, so that the price of `A10` is not that of an
A100.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

_BETWEEN_WORDS: Final = re.compile(r"[ _-]+")

DRIVER_NAMES: Final = (
    "NVIDIA A2",
    "NVIDIA A10",
    "NVIDIA A16",
    "NVIDIA A30",
    "NVIDIA A40",
    "NVIDIA A100-PCIE-40GB",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA A100 80GB PCIe",
    "NVIDIA A800-SXM4-80GB",
    "NVIDIA B200",
    "NVIDIA GH200 480GB",
    "NVIDIA H20",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H100 PCIe",
    "NVIDIA H100 NVL",
    "NVIDIA H200",
    "NVIDIA H200 NVL",
    "NVIDIA L4",
    "NVIDIA L40",
    "NVIDIA L40S",
    "NVIDIA RTX 6000 Ada Generation",
    "NVIDIA RTX A6000",
    "NVIDIA T400",
    "Tesla T4",
    "Tesla P100-PCIE-16GB",
    "Tesla V100-PCIE-16GB",
    "Tesla V100-SXM2-16GB",
    "Tesla V100-SXM2-32GB",
    "Tesla V100S-PCIE-32GB",
)
"""Names of models by NVML's `nvmlDeviceGetName`, to check settings before a GPU is available."""


class Match(NamedTuple):
    """The rank of a price list's key for a GPU model whose name has the key's words; the largest fits best.

    Attributes:
        words: the number of words of the key.
        leftness: 0 if the key's words begin at the first word of the model's name, -1 at the second, and so on.
    """

    words: int
    leftness: int


def takes(choice: str, model: str) -> bool:
    """Returns whether a pod's choice of models matches a model: the model's name contains the choice, in any case.

    Args:
        choice: a model or a part of its name, as a pod's author wrote it.
        model: the model's name, as the driver has it.
    """
    return choice.casefold() in model.casefold()


@lru_cache(maxsize=4096)
def words(name: str) -> tuple[str, ...]:
    """Returns the words of a GPU model's name in lower case, without the words for how a device is divided.

    NVML's `NVIDIA A100-SXM4-80GB` and GPU feature discovery's `NVIDIA-A100-SXM4-80GB` have the same words. GPU feature
    discovery appends `-SHARED` and `-MIG-1g.10gb`, which are left out
    (https://github.com/NVIDIA/k8s-device-plugin/blob/main/docs/gpu-feature-discovery/README.md).
    """
    parts = tuple(word for word in _BETWEEN_WORDS.split(name.casefold()) if word)
    if "mig" in parts[1:]:
        parts = parts[: parts.index("mig", 1)]
    return parts[:-1] if len(parts) > 1 and parts[-1] == "shared" else parts


@lru_cache(maxsize=65536)
def match(key: str, model: str) -> Match | None:
    """Returns the rank of a price list's key for a GPU model; None if the model's name lacks the key's words.

    The words must stand in the name as whole words, one after the other, in any case of the letters. Words for how a
    device is divided do not count (see `words`). If several keys match the model, the one with the largest rank prices
    it.

    Args:
        key: the key, such as `A100`.
        model: the model's name, such as `NVIDIA A100-SXM4-80GB`.
    """
    wanted, given = words(key), words(model)
    if not wanted:
        return None
    for start in range(len(given) - len(wanted) + 1):
        if given[start : start + len(wanted)] == wanted:
            return Match(len(wanted), -start)
    return None


def best_key(keys: Iterable[str], model: str) -> str | None:
    """Returns the key of a price list that fits a GPU model best; None if no key names the model.

    The key with the most words fits best. Among keys with equally many words, the one whose words begin earliest in the
    model's name fits best.
    """
    matches = [(matched, key) for key in keys if (matched := match(key, model)) is not None]
    return max(matches)[1] if matches else None


def tie(keys: Sequence[str]) -> tuple[str, str, str] | None:
    """Returns two keys of a price list that fit one GPU model equally well, and the model's name.

    Such a price list is ambiguous. Two keys fit a model of DRIVER_NAMES equally well if both match its name with
    equally many words. Two keys of the same words fit every model equally well: the first key then stands for the
    model's name.

    Returns None if no two keys fit a model equally well.
    """
    seen: dict[tuple[str, ...], str] = {}
    for key in keys:
        if words(key) and (other := seen.setdefault(words(key), key)) != key:
            return other, key, other
    for model in DRIVER_NAMES:
        counts: dict[int, str] = {}
        for key in keys:
            matched = match(key, model)
            if matched is not None and (other := counts.setdefault(matched.words, key)) != key:
                return other, key, model
    return None
