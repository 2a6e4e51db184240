"""A kubeconfig that cannot be used ends a command with a reason, whatever is in the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from fairgpu.client.server import from_environment
from fairgpu.cluster.api import TOKEN_SECONDS, ApiError, KubernetesAPI
from fairgpu.cluster.connect import (
    MOST_KEPT_CONNECTIONS,
    NoClusterError,
    connect,
    namespace_of_context,
    read_kubeconfig,
    unreadable,
)
from fairgpu.commands import CommandError

SOUND = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: a, user: u}}]
clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: abc}}]
"""
UNUSABLE = {
    "not there": None,
    "empty": "",
    "no YAML": "a: [b\n",
    "a list": "- a\n",
    "a text": "hello\n",
    "clusters that are no list": SOUND.replace('[{name: a, cluster: {server: "https://127.0.0.1:1"}}]', "7"),
    "a user without a name": SOUND.replace("name: u, ", ""),
    "a key that is no base64": SOUND.replace("token: abc", "client-certificate-data: YQ==, client-key-data: a"),
    "no such context": SOUND.replace("current-context: here", "current-context: there"),
}
SERVER = {"FAIRGPU_SERVER": "https://gpus.example.org"}


@pytest.mark.parametrize("text", UNUSABLE.values(), ids=UNUSABLE)
def test_a_file_that_is_no_kubeconfig_is_named_with_the_reason(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    environ = {"KUBECONFIG": str(file)}
    with pytest.raises(NoClusterError, match=f"(?s)no Kubernetes API server: .*looked at {file}"):
        connect(environ)
    with pytest.raises(CommandError, match="FAIRGPU_TOKEN is not set and no kubeconfig can be used"):
        from_environment(SERVER | environ)


def test_a_pod_without_a_service_account_is_answered_with_the_place_that_was_looked_at() -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(NoClusterError, match=r"looked at the pod's service account; KUBECONFIG names another one"):
        connect(pod)


EXEC = "{apiVersion: client.authentication.k8s.io/v1, command: "
EMPTY = '{"apiVersion": "v1", "kind": "ExecCredential", "status": {}}'
PLUGINS = {
    "missing": (EXEC + "no-such-plugin}", r"\.command is 'no-such-plugin', .* cannot be started \(.*\): install it"),
    "no program": (EXEC + "/}", r"\.command is '/', a program that cannot be started \(.*\): install it"),
    "failing": (
        EXEC + "sh, args: [-c, 'echo expired >&2; exit 3']}",
        r" runs 'sh', .* \(process returned 3.*\): log in",
    ),
    "silent": (
        EXEC + "'true'}",
        r" runs 'true', which gives no credentials \(failed to decode process output.*\): log in",
    ),
    "without a token": (
        f"{{apiVersion: v1, command: echo, args: ['{EMPTY}']}}",
        r" runs 'echo', .* \(missing token or .*\)",
    ),
    "unnamed": ("{apiVersion: v1}", r" runs None, .* \(malformed request. missing key 'command'\)"),
}


@pytest.mark.parametrize(("plugin", "reason"), PLUGINS.values(), ids=PLUGINS)
def test_an_exec_plugin_that_gives_no_credentials_is_named_with_the_reason(
    tmp_path: Path, plugin: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "config"
    file.write_text(SOUND.replace("{token: abc}", f"{{exec: {plugin}}}"))
    environ = {"KUBECONFIG": str(file)}
    with pytest.raises(NoClusterError, match=rf"(?s)users\[name=u\]\.user\.exec{reason}.*looked at {file}"):
        connect(environ)
    with pytest.raises(CommandError, match=rf"(?s)no kubeconfig can be used: users.*exec{reason}"):
        from_environment(SERVER | environ)
    assert caplog.messages == []


def test_an_exec_plugin_makes_the_token(tmp_path: Path) -> None:
    file = tmp_path / "config"
    credential = '{"apiVersion": "v1", "kind": "ExecCredential", "status": {"token": "made"}}'
    file.write_text(
        SOUND.replace("{token: abc}", f"{{exec: {{apiVersion: v1, command: echo, args: ['{credential}']}}}}")
    )
    assert from_environment(SERVER | {"KUBECONFIG": str(file)}).token == "made"


def test_so_many_connections_are_kept_whatever_the_number_of_cpus(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(SOUND)
    assert read_kubeconfig(str(file)).connection_pool_maxsize == MOST_KEPT_CONNECTIONS


def test_a_token_that_has_rotated_is_sent_a_second_later_and_the_library_is_not_asked_at_every_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configuration, seconds, asked = client.Configuration(), [0.0], list[float]()
    configuration.api_key["BearerToken"] = "the first"

    def refresh(refreshed: client.Configuration) -> None:
        asked.append(seconds[0])
        refreshed.api_key["BearerToken"] = "the first" if seconds[0] < 1 else "the next"

    configuration.refresh_api_key_hook = refresh
    transport, sent = client.ApiClient(configuration), list[str]()

    def note(*_: Any, headers: dict[str, str], **__: Any) -> None:
        sent.append(headers["Authorization"])
        raise OSError("nothing listens")

    monkeypatch.setattr(transport.rest_client.pool_manager, "urlopen", note)
    monkeypatch.setattr("fairgpu.cluster.api.time.monotonic", lambda: seconds[0])
    server = KubernetesAPI(transport)
    for now in (0.0, 0.5, 0.9, TOKEN_SECONDS, 1.5):
        seconds[0] = now
        with pytest.raises(ApiError):
            server.get("/version")
    assert sent == ["the first"] * 3 + ["the next"] * 2
    assert asked == [0.0, TOKEN_SECONDS]


def test_a_kubeconfig_that_can_be_used_is(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(SOUND)
    connect({"KUBECONFIG": str(file)})
    assert from_environment(SERVER | {"KUBECONFIG": str(file)}).token == "abc"


@pytest.mark.parametrize("token", ["two words", "line\nend", "töken"])
def test_a_text_that_cannot_be_a_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(CommandError, match="FAIRGPU_TOKEN holds") as refused:
        from_environment(SERVER | {"FAIRGPU_TOKEN": token})
    assert token not in str(refused.value)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("not there", "there is no kubeconfig"),
        ("no such context", "current-context: given there; allowed: here; write `kubectl config use-context NAME`"),
        ("a text", "the file is no kubeconfig; allowed: YAML with the lists clusters, contexts and users"),
    ],
)
def test_a_kubeconfig_that_lacks_something_is_answered_with_what_to_write(
    tmp_path: Path, fault: str, said: str
) -> None:
    file = tmp_path / "config"
    text = UNUSABLE[fault]
    if text is not None:
        file.write_text(text)
    with pytest.raises(NoClusterError) as refused:
        connect({"KUBECONFIG": str(file)})
    assert said in str(refused.value)


def test_a_silent_api_server_is_named_with_the_cause_and_what_to_look_at(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(SOUND)
    with pytest.raises(ApiError) as silent:
        connect({"KUBECONFIG": str(file)}).get("/version")
    assert re.fullmatch(
        r"the API server at https://127\.0\.0\.1:1 does not answer: Failed to establish a new connection: .*refused",
        str(silent.value),
    )
    assert str(unreadable(silent.value, "nodes")).startswith("nodes cannot be read: the API server at https://127")
    assert "Look whether `kubectl get --raw /version` answers" in str(unreadable(silent.value, "nodes"))


@pytest.mark.parametrize(
    ("status", "hint"),
    [(401, "log in anew, until `kubectl auth whoami` names you"), (403, "it needs `list`"), (500, "")],
)
def test_a_refusal_has_the_hint_of_its_status(status: int, hint: str) -> None:
    first, *rest = str(unreadable(ApiError(status, "Reason", "said"), "nodes", "it needs `list`")).split("\n")
    assert first == "nodes cannot be read: said"
    assert hint in "\n".join(rest)
    assert bool(rest) is bool(hint)


@pytest.mark.parametrize(
    ("text", "namespace"),
    [
        (SOUND, "default"),
        (SOUND.replace("user: u}", "user: u, namespace: team-a}"), "team-a"),
        (UNUSABLE["no such context"], "default"),
        ("hello\n", "default"),
        (None, "default"),
    ],
)
def test_without_a_namespace_that_of_the_current_context_counts(
    tmp_path: Path, text: str | None, namespace: str
) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    assert namespace_of_context({"KUBECONFIG": str(file)}) == namespace


def test_in_a_pod_the_namespace_is_that_of_the_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "namespace"
    monkeypatch.setattr("fairgpu.cluster.connect._POD_NAMESPACE", file)
    in_a_pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert namespace_of_context(in_a_pod) == "default"
    file.write_text("team-a\n")
    assert namespace_of_context(in_a_pod) == "team-a"
