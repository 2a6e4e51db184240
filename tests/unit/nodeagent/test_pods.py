"""The node's pods as the agent keeps them."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.pods import by_kubelets_uid, kubelets_uid, read

STATIC_UID = "0123456789abcdef0123456789abcdef"


PLAIN = read({"metadata": {"name": "a", "uid": "a-1"}})
MIRROR = read(
    {"metadata": {"name": "m", "uid": "b-2", "annotations": {"kubernetes.io/config.mirror": STATIC_UID, "other": "x"}}}
)
PRETENDS = read({"metadata": {"name": "p", "uid": "c-3", "annotations": {"kubernetes.io/config.mirror": "a-1"}}})


def test_the_kubelet_knows_a_static_pod_by_the_uid_that_its_mirror_names_and_others_by_their_own() -> None:
    assert [kubelets_uid(each) for each in (PLAIN, MIRROR)] == ["a-1", STATIC_UID]


@pytest.mark.parametrize(("uid", "found"), [("a-1", PLAIN), (STATIC_UID, MIRROR), ("b-2", MIRROR), ("d-4", None)])
def test_a_pod_is_found_by_either_uid_and_none_takes_the_place_of_another(
    uid: str, found: dict[str, Any] | None
) -> None:
    assert by_kubelets_uid([PRETENDS, PLAIN, MIRROR], uid) is found
