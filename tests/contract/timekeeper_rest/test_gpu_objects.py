"""GPUNodes and GPUPods without a cluster: rights come first, then parameters, and then there is nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.servers.rest_server import RestServer

NODES, PODS = "/apis/fairgpu.io/v1/gpunodes", "/apis/fairgpu.io/v1/gpupods"


@pytest.mark.parametrize("path", [NODES, PODS])
def test_a_caller_without_a_token_or_a_right_is_refused(rest: RestServer, path: str) -> None:
    assert rest.ask("GET", path).status == 401
    answer = rest.as_person("nobody", "GET", path)
    assert answer.status == 403
    assert f"list {path.rpartition('/')[2]}.fairgpu.io at cluster scope" in answer.document["detail"]


def test_a_watch_needs_the_right_to_watch(rest: RestServer) -> None:
    answer = rest.as_person("finance", "GET", f"{PODS}?watch=true&namespace=team-a")
    assert answer.status == 403
    assert "watch gpupods.fairgpu.io in namespace 'team-a'" in answer.document["detail"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("watch=maybe", "watch"),
        ("timeoutSeconds=0", "timeoutSeconds"),
        ("timeoutSeconds=1.5", "timeoutSeconds"),
        ("allowWatchBookmarks=yes", "allowWatchBookmarks"),
        ("limit=5", "limit"),
        ("namespace=Team", "namespace"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_named(rest: RestServer, query: str, field: str) -> None:
    answer = rest.as_person("finance", "GET", f"{PODS}?{query}")
    assert answer.status == 422
    assert answer.document["errors"][0]["field"] == field


def test_nodes_have_no_namespace(rest: RestServer) -> None:
    assert rest.as_person("finance", "GET", f"{NODES}?namespace=team-a").status == 422


@pytest.mark.parametrize("path", [NODES, PODS])
def test_a_folder_has_none_and_says_so(rest: RestServer, path: str) -> None:
    answer = rest.as_person("finance", "GET", path)
    assert (answer.status, answer.document["type"]) == (404, "urn:fairgpu:problem:not-found")
    assert "serves a folder and no cluster" in answer.document["detail"]


def test_another_method_is_answered_with_those_that_are(rest: RestServer) -> None:
    answer = rest.as_person("admin", "POST", NODES)
    assert (answer.status, "GET" in answer.headers["allow"]) == (405, True)
