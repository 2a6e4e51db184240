"""kube-scheduler's extender protocol: its requests and responses.

The types are those of https://github.com/kubernetes/kube-scheduler/blob/v0.34.2/extender/v1/types.go; Go writes their
fields as they are named there.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec

MAX_SCORE = 10
"""The highest score; kube-scheduler multiplies it by the extender's weight."""


class ArgumentsError(ValueError):
    """A body that is not of the protocol; the message states the fault."""


class FilterArguments(msgspec.Struct, frozen=True, dict=True):
    """The pod, and the names of the nodes that passed all other filters.

    The names stay undecoded JSON until all are needed: a search for one name in the bytes takes a tenth of the time.
    """

    pod: dict[str, Any] = msgspec.field(name="Pod")
    names_json: msgspec.Raw = msgspec.field(name="NodeNames", default=msgspec.Raw(b"null"))

    @cached_property
    def names_text(self) -> bytes:
        """The names of the nodes, as JSON."""
        return bytes(self.names_json)

    @cached_property
    def node_names(self) -> list[str]:
        """The names of the nodes.

        Raises:
            ArgumentsError: they are no list of names.
        """
        try:
            return _NAMES.decode(self.names_json)
        except msgspec.DecodeError as error:
            raise ArgumentsError(f"NodeNames: {error}") from error

    def has(self, name: str) -> bool:
        """Whether a node is named; its name must be one that the API server accepts, so without an escape in JSON."""
        return b'"%b"' % name.encode() in self.names_text


class BindArguments(msgspec.Struct, frozen=True):
    """The pod to bind, and its node."""

    pod_name: str = msgspec.field(name="PodName")
    pod_namespace: str = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class FilterResult(msgspec.Struct, rename="pascal", frozen=True):
    """The nodes that fit, and why the others do not: `unresolvable` where no end of another pod helps.

    Names and texts can be JSON already: to encode those of thousands of nodes takes longer than all else of an answer.
    """

    node_names: list[str] | msgspec.Raw
    failed_nodes: dict[str, str] | msgspec.Raw = {}
    failed_and_unresolvable_nodes: dict[str, str] | msgspec.Raw = {}
    error: str = ""


class MetaPod(msgspec.Struct, frozen=True):
    """A pod by its uid alone."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, frozen=True):
    """Pods of one node to evict, and how many PodDisruptionBudgets that violates."""

    pods: list[MetaPod] = msgspec.field(name="Pods", default_factory=list)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptArguments(msgspec.Struct, frozen=True):
    """The pod that preempts, and by node the victims that kube-scheduler would choose."""

    pod: dict[str, Any] = msgspec.field(name="Pod")
    victims: dict[str, MetaVictims] | None = msgspec.field(name="NodeNameToMetaVictims", default=None)


class PreemptResult(msgspec.Struct, frozen=True):
    """By node the victims that free the devices; a node that is not named is no candidate."""

    victims: dict[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims", default_factory=dict)


class BindResult(msgspec.Struct, rename="pascal", frozen=True):
    """The outcome of a bind; empty where the pod is bound."""

    error: str = ""


_FILTER = msgspec.json.Decoder(FilterArguments)
_NAMES = msgspec.json.Decoder(list[str])
_PREEMPT = msgspec.json.Decoder(PreemptArguments)
_BIND = msgspec.json.Decoder(BindArguments)
_ENCODER = msgspec.json.Encoder()


def decode_filter(body: bytes) -> FilterArguments:
    """Decodes the arguments of filter and prioritize.

    Raises:
        ArgumentsError: the body is not such arguments, or has no list of nodes.
    """
    try:
        arguments = _FILTER.decode(body)
    except msgspec.DecodeError as error:
        raise ArgumentsError(str(error)) from error
    if not arguments.names_text.startswith(b"["):
        raise ArgumentsError("NodeNames is missing: set nodeCacheCapable for the extender")
    return arguments


def decode_bind(body: bytes) -> BindArguments:
    """Decodes the arguments of bind.

    Raises:
        ArgumentsError: they are none.
    """
    try:
        return _BIND.decode(body)
    except msgspec.DecodeError as error:
        raise ArgumentsError(str(error)) from error


def decode_preempt(body: bytes) -> PreemptArguments:
    """Parses the arguments of preempt.

    Raises:
        ArgumentsError: they are invalid, or hold no uids of victims.
    """
    try:
        arguments = _PREEMPT.decode(body)
    except msgspec.DecodeError as error:
        raise ArgumentsError(str(error)) from error
    if arguments.victims is None:
        raise ArgumentsError("NodeNameToMetaVictims is missing: set nodeCacheCapable for the extender")
    return arguments


def encode(answer: FilterResult | BindResult | PreemptResult) -> bytes:
    """Encodes an answer."""
    return _ENCODER.encode(answer)


def encode_names(names: list[str]) -> msgspec.Raw:
    """Returns the names of nodes as JSON, as kube-scheduler sends them back in the same order."""
    return msgspec.Raw(_ENCODER.encode(names))


def encode_scores(names_by_score: dict[int, list[str]]) -> bytes:
    """Encodes the answer of prioritize: nodes by their score, 0 to MAX_SCORE.

    All nodes of a score are joined at once, since an object for each of thousands takes longer than to score them.
    """
    hosts = []
    for score, names in names_by_score.items():
        # A quote within a name is escaped, so that this sequence stands between two names alone.
        quoted = _ENCODER.encode(names)[1:-1].replace(b'","', b'","Score":%d},{"Host":"' % score)
        hosts += [b'{"Host":%b,"Score":%d}' % (quoted, score)] if names else []
    return b"[%b]" % b",".join(hosts)
