"""kube-scheduler's extender protocol: its requests and responses.

The types are those of https://github.com/kubernetes/kube-scheduler/blob/v0.34.2/extender/v1/types.go. Their fields have
the same names in JSON as there in Go.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from scheduler.cluster.excerpts import PodObject, excerpt

Json = Mapping[str, Any]

MAX_SCORE = 10
"""The highest score; kube-scheduler multiplies it by the extender's weight."""
MAX_RECOGNISED_BYTES = 1 << 20
"""The longest list of names that is recognised: 20,000 names of 50 bytes."""


class ArgumentsError(ValueError):
    """Raised for a request body that is not of kube-scheduler's extender protocol; the message names the fault."""


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors that msgspec raises for bytes that it cannot decode. Two of them are Python's own, not msgspec's."""

NamesKey = tuple[int, int, int]
"""A key of a list of names: the length of its JSON in bytes, the number of names, and the sum of the names' hashes."""

_FACTOR = 0x9E3779B97F4A7C15
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_QUOTE = ord('"')


class _Powers:
    """The powers f^0, f^1, … of the factor of a polynomial hash, and those of its inverse, all modulo 2^64.

    With them `key_of_names` hashes each name of a list. They are computed as far as the longest list so far needs.
    """

    def __init__(self) -> None:
        self._up, self._down = self._made(1 << 10)

    def of(self, length: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Returns f^0, f^1, … of the factor and of its inverse, at least `length` of each."""
        if length > len(self._up):
            self._up, self._down = self._made(1 << length.bit_length())
        return self._up, self._down

    @staticmethod
    def _made(count: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        made = []
        for factor in (_FACTOR, pow(_FACTOR, -1, 1 << 64)):
            powers = np.full(count, factor, np.uint64)
            powers[0] = 1
            made.append(np.multiply.accumulate(powers))
        return made[0], made[1]


_POWERS = _Powers()


def key_of_names(text: bytes) -> NamesKey | None:
    """Returns a key that is equal for JSON lists of the same names in any order; None if there is no key.

    A list with an escape character, without a name, or longer than MAX_RECOGNISED_BYTES has no key. Each name has a
    polynomial hash of 64 bits, which is mixed before all are added. A set of names is found by its key in half the time
    of decoding the names, and in a fifth of the time of looking each of them up. The hash guards against chance, and
    not against names that are made to collide, since an admin names the nodes.
    """
    if len(text) > MAX_RECOGNISED_BYTES or b"\\" in text:
        return None
    # The brackets are cut off and a comma is added, so that each name stands between the same characters.
    characters = np.frombuffer(text[1:-1] + b",", np.uint8)
    starts = np.flatnonzero(characters == _QUOTE)[::2]
    if not len(starts):
        return None
    up, down = _POWERS.of(len(characters))
    terms = characters.astype(np.uint64)
    terms *= up[: len(terms)]
    hashes = np.add.reduceat(terms, starts)
    hashes *= down[starts]
    hashes ^= hashes >> np.uint64(29)
    hashes *= _MIX
    hashes ^= hashes >> np.uint64(32)
    return len(text), len(starts), int(hashes.sum())


class FilterArguments(msgspec.Struct, frozen=True, dict=True):
    """The body of kube-scheduler's calls `filter` and `prioritize`.

    The names stay undecoded JSON until all are needed: a search for one name in the bytes takes a tenth of the time.
    Of the pod, only the fields that the scheduler reads are decoded: most of its bytes are managedFields and volumes.

    Attributes:
        pod_json: the pod as undecoded JSON.
        names_json: the JSON list of the names of the nodes that passed all other filters.
    """

    pod_json: msgspec.Raw = msgspec.field(name="Pod")
    names_json: msgspec.Raw = msgspec.field(name="NodeNames", default=msgspec.Raw(b"null"))

    @cached_property
    def pod(self) -> Json:
        """The pod, with the fields that `PodObject` lists.

        Raises:
            ArgumentsError: the JSON is not an object, or cannot be read.
        """
        try:
            pod: object = _POD(bytes(self.pod_json))
        except (ValueError, RecursionError) as error:
            raise ArgumentsError(f"Pod: {_fault(error)}") from error
        if not isinstance(pod, dict):
            raise ArgumentsError("Pod: it is no object")
        return pod

    @cached_property
    def names_text(self) -> bytes:
        """The names of the nodes, as the bytes of a JSON list."""
        return bytes(self.names_json)

    @cached_property
    def names_key(self) -> NamesKey | None:
        """A key of the set of names, the same for any order of the names; None if `key_of_names` gives none."""
        return key_of_names(self.names_text)

    @cached_property
    def node_names(self) -> list[str]:
        """The names of the nodes.

        Raises:
            ArgumentsError: the JSON is not a list of texts.
        """
        try:
            return _NAMES.decode(self.names_json)
        except _UNREADABLE as error:
            raise ArgumentsError(f"NodeNames: {_fault(error)}") from error

    def has(self, name: str) -> bool:
        """Returns whether the list has the node of this name.

        The name must be one that the API server accepts, so that it has no escape character in JSON.
        """
        return b'"%b"' % name.encode() in self.names_text


class BindArguments(msgspec.Struct, frozen=True):
    """The body of kube-scheduler's call `bind`: the pod to bind, and its node."""

    pod_name: str = msgspec.field(name="PodName")
    pod_namespace: str = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class FilterResult(msgspec.Struct, rename="pascal", frozen=True):
    """The answer to kube-scheduler's call `filter`.

    Names and texts may be given as JSON that was encoded earlier: to encode those of thousands of nodes takes longer
    than all other work for an answer.

    Attributes:
        node_names: the names of the nodes that fit.
        failed_nodes: the reason against each node that may fit once another pod has ended, keyed by the node's name.
        failed_and_unresolvable_nodes: the reason against each node on which the end of other pods does not help.
        error: the error of the whole call; empty for none.
    """

    node_names: list[str] | msgspec.Raw
    failed_nodes: dict[str, str] | msgspec.Raw = {}
    failed_and_unresolvable_nodes: dict[str, str] | msgspec.Raw = {}
    error: str = ""


class MetaPod(msgspec.Struct, frozen=True):
    """A pod in kube-scheduler's call `preempt`, which names it by its uid alone."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, frozen=True):
    """The pods of one node to evict, and the number of PodDisruptionBudgets that their eviction violates."""

    pods: list[MetaPod] = msgspec.field(name="Pods", default_factory=list)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptArguments(msgspec.Struct, frozen=True):
    """The body of kube-scheduler's call `preempt`.

    Attributes:
        pod: the pod that is to be placed, as JSON.
        victims: the pods whose eviction kube-scheduler proposes, keyed by the node's name; None if kube-scheduler sent
            whole pods in place of their uids.
    """

    pod: dict[str, Any] = msgspec.field(name="Pod")
    victims: dict[str, MetaVictims] | None = msgspec.field(name="NodeNameToMetaVictims", default=None)


class PreemptResult(msgspec.Struct, frozen=True):
    """The answer to kube-scheduler's call `preempt`: the pods to evict, keyed by the node's name.

    A node without an entry is no candidate.
    """

    victims: dict[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims", default_factory=dict)


class BindResult(msgspec.Struct, rename="pascal", frozen=True):
    """The answer to kube-scheduler's call `bind`.

    Attributes:
        error: the reason why the pod is not bound, or that this is not known; empty if it is bound.
    """

    error: str = ""


_NEXT = b',{"Host":"'
_BETWEEN = np.array([b'","Score":%d}%b' % (score, _NEXT) for score in range(MAX_SCORE + 1)], np.object_)

_FILTER = msgspec.json.Decoder(FilterArguments)
_POD = excerpt(PodObject)
_NAMES = msgspec.json.Decoder(list[str])
_PREEMPT = msgspec.json.Decoder(PreemptArguments)
_BIND = msgspec.json.Decoder(BindArguments)
_ENCODER = msgspec.json.Encoder()


def decode_filter(body: bytes) -> FilterArguments:
    """Decodes the body of kube-scheduler's call `filter` or `prioritize`.

    Raises:
        ArgumentsError: the body cannot be read, or has no list of nodes.
    """
    try:
        arguments = _FILTER.decode(body)
        if not body.isascii():
            # The decoder has left most of the body undecoded.
            body.decode()
    except _UNREADABLE as error:
        raise ArgumentsError(_fault(error)) from error
    if not arguments.names_text.startswith(b"["):
        raise ArgumentsError("NodeNames is missing: set nodeCacheCapable for the extender")
    return arguments


def decode_bind(body: bytes) -> BindArguments:
    """Decodes the body of kube-scheduler's call `bind`.

    Raises:
        ArgumentsError: the body cannot be read.
    """
    try:
        return _BIND.decode(body)
    except _UNREADABLE as error:
        raise ArgumentsError(_fault(error)) from error


def decode_preempt(body: bytes) -> PreemptArguments:
    """Decodes the body of kube-scheduler's call `preempt`.

    Raises:
        ArgumentsError: the body cannot be read, or has no uids of victims.
    """
    try:
        arguments = _PREEMPT.decode(body)
    except _UNREADABLE as error:
        raise ArgumentsError(_fault(error)) from error
    if arguments.victims is None:
        raise ArgumentsError("NodeNameToMetaVictims is missing: set nodeCacheCapable for the extender")
    return arguments


def _fault(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "JSON is nested too deeply"
    return f"JSON is not UTF-8: {error.reason}" if isinstance(error, UnicodeDecodeError) else str(error)


def encode(answer: FilterResult | BindResult | PreemptResult) -> bytes:
    """Encodes the answer to a call of kube-scheduler as JSON."""
    return _ENCODER.encode(answer)


def encode_names(names: list[str]) -> msgspec.Raw:
    """Returns the names of nodes as a JSON list, in their order. kube-scheduler sends such a list back unchanged."""
    return msgspec.Raw(_ENCODER.encode(names))


def joined(first: msgspec.Raw, second: msgspec.Raw) -> msgspec.Raw:
    """Returns one JSON object with the fields of two JSON objects, which must have no field in common.

    Neither object may have whitespace before or after it.
    """
    fields = [part for part in (bytes(first)[1:-1], bytes(second)[1:-1]) if part]
    return msgspec.Raw(b"{%b}" % b",".join(fields))


def encode_scores(names_text: bytes, scores: npt.NDArray[np.integer[Any]]) -> bytes:
    """Encodes the answer to kube-scheduler's call `prioritize`: each node's name with its score.

    Names stay as they are in the text: an object for each of thousands of nodes takes longer than to score them.

    Args:
        names_text: the JSON list of the nodes' names.
        scores: a whole number from 0 to MAX_SCORE for each name, in order.
    """
    plain = b"\\" not in names_text and names_text.startswith(b'["') and names_text.endswith(b'"]')
    names = names_text[2:-2].split(b'","') if plain else []
    if len(names) != len(scores):
        names = [_ENCODER.encode(name)[1:-1] for name in _NAMES.decode(names_text)]
    parts: list[bytes] = [b""] * (2 * len(names))
    parts[::2] = names
    parts[1::2] = _BETWEEN[scores].tolist()
    # The text after each name begins the next host; after the last name it is cut off.
    return b'[{"Host":"%b]' % b"".join(parts).removesuffix(_NEXT) if names else b"[]"
