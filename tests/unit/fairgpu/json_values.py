"""Arbitrary JSON, and pods put together from the dialects' own keys with arbitrary values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fairgpu import names
from fairgpu.dialects.registry import DIALECTS

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
AMOUNTS = st.integers(0, 16).map(str) | st.sampled_from(
    ("1", "2", "10", "30", "50", "100", "150", "200", "300", "1024", "4096", "1e3", "0.5", "-1", "2Gi", "9" * 30)
)
ANNOTATION_TEXTS = AMOUNTS | st.sampled_from(
    ("0.5", "0.333", "1", "A100", "A100,V100", "", ",", "main", "other", "elastic", "hard", "pack", "binpack", "\ud800")
)
KEYS_THAT_GO_TOGETHER = [
    *(st.sampled_from(sorted(dialect.resources)) for dialect in DIALECTS.dialects if dialect.resources),
    st.sampled_from(sorted(DIALECTS.resources)),
]
ANNOTATION_KEYS = st.sampled_from(
    sorted(DIALECTS.annotations) + list(names.CHOICE_ANNOTATIONS) + ["fairgpu.io/core-polcy"]
)


def resources(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Mostly limits in one dialect, sometimes in several, sometimes with requests that agree or do not."""

    def among(keys: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
        amounts = st.dictionaries(keys, values, max_size=4)
        agreeing = amounts.map(lambda limits: {"limits": limits, "requests": limits})
        return (
            agreeing
            | amounts.map(lambda limits: {"limits": limits})
            | st.fixed_dictionaries({}, optional={"limits": amounts, "requests": amounts})
        )

    return st.one_of([among(keys) for keys in KEYS_THAT_GO_TOGETHER])


def containers(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    container = st.fixed_dictionaries(
        {"name": st.sampled_from(("main", "other", "fairgpu-sidecar")), "resources": resources(values)},
        optional={"restartPolicy": st.just("Always")},
    )
    return st.lists(container, max_size=3)


def pods(values: st.SearchStrategy[Any], texts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Pods whose resources take `values` and whose annotations take `texts`."""
    return st.fixed_dictionaries(
        {
            "metadata": st.fixed_dictionaries(
                {"annotations": st.dictionaries(ANNOTATION_KEYS, texts, max_size=4)},
                optional={"labels": st.fixed_dictionaries({"aliyun.com/gpu-count": texts})},
            ),
            "spec": st.fixed_dictionaries(
                {"containers": containers(values)},
                optional={"initContainers": containers(values), "ephemeralContainers": containers(values)},
            ),
        }
    )
