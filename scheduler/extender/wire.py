"""kube-scheduler's extender protocol: its requests and responses.

The types are those of https://github.com/kubernetes/kube-scheduler/blob/v0.34.2/extender/v1/types.go; Go writes their
fields as they are named there.
"""

from __future__ import annotations

from typing import Any

import msgspec

MAX_SCORE = 10
"""The highest score; kube-scheduler multiplies it by the extender's weight."""


class ArgumentsError(ValueError):
    """A body that is not of the protocol; the message states the fault."""


class FilterArguments(msgspec.Struct, rename="pascal", frozen=True):
    """The pod, and the names of the nodes that passed all other filters."""

    pod: dict[str, Any]
    node_names: list[str] | None = None


class BindArguments(msgspec.Struct, frozen=True):
    """The pod to bind, and its node."""

    pod_name: str = msgspec.field(name="PodName")
    pod_namespace: str = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class FilterResult(msgspec.Struct, rename="pascal", frozen=True):
    """The nodes that fit, and why the others do not: `unresolvable` where no end of another pod helps.

    Texts can be JSON already: to encode those of thousands of nodes takes longer than all else of a refusal.
    """

    node_names: list[str]
    failed_nodes: dict[str, str] | msgspec.Raw = {}
    failed_and_unresolvable_nodes: dict[str, str] | msgspec.Raw = {}
    error: str = ""


class HostPriority(msgspec.Struct, rename="pascal", frozen=True):
    """A node and its score, 0 to MAX_SCORE."""

    host: str
    score: int


class MetaPod(msgspec.Struct, frozen=True):
    """A pod by its uid alone."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, frozen=True):
    """Pods of one node that are to go, and how many PodDisruptionBudgets that violates."""

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
_PREEMPT = msgspec.json.Decoder(PreemptArguments)
_BIND = msgspec.json.Decoder(BindArguments)
_ENCODER = msgspec.json.Encoder()


def decode_filter(body: bytes) -> FilterArguments:
    """Decodes the arguments of filter and prioritize.

    Raises:
        ArgumentsError: the body is not such arguments, or names no nodes.
    """
    try:
        arguments = _FILTER.decode(body)
    except msgspec.DecodeError as error:
        raise ArgumentsError(str(error)) from error
    if arguments.node_names is None:
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


def encode(answer: FilterResult | BindResult | PreemptResult | list[HostPriority]) -> bytes:
    """Encodes an answer."""
    return _ENCODER.encode(answer)
