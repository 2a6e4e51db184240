"""What is ordered over REST: an object each, a grant or a correction, whose name makes a repeated request harmless."""

from __future__ import annotations

import json
from decimal import Decimal
from hashlib import sha256
from typing import Protocol

from fairgpu.cluster.api import Json
from timekeeper.rest.figures import Book, is_budget
from timekeeper.rest.problems import ProblemError, invalid
from timekeeper.rules.money import MAX_GPU_HOURS, MoneyError, from_signed_gpu_hours
from timekeeper.rules.timestamps import TimeError, parse_instant
from timekeeper.sources.source import ExistsError

MAX_KEY_LENGTH = 255
_ALLOWED = f"a number above 0 and up to {MAX_GPU_HOURS} with at most six decimal places, such as 2.5"
_SIGNED = f"a number from -{MAX_GPU_HOURS} to {MAX_GPU_HOURS} but 0 with at most six decimal places, such as -2.5"
_MOMENTS = ("expires", "effectivePeriod")


class OrderStore(Protocol):
    """Where the objects of one kind are kept."""

    def create(self, item: Json) -> Json:
        """Creates an object.

        Raises:
            ExistsError: there is one of that name.
        """

    def read(self, name: str) -> Json | None:
        """The object of that name."""


def place(item: Json, store: OrderStore) -> tuple[Json, bool]:
    """The object that stands for an order, and whether this call made it. Whoever repeats it need not be the same.

    Raises:
        ProblemError: an object of that name was made for something else.
    """
    try:
        return store.create(item), True
    except ExistsError:
        name = item["metadata"]["name"]
        existing = store.read(name)
    if existing is None or not _same(existing.get("spec") or {}, item["spec"]):
        detail = f"{name!r} was made already, for something else: choose another name or Idempotency-Key"
        raise ProblemError(409, "conflict", detail)
    return existing, False


def gpu_hours_text(field: str, value: float | str, *, negative: bool = False) -> str:
    """An amount as an object states it. A JSON number counts as the decimal that was written.

    Args:
        field: whose value it is.
        value: what was given.
        negative: whether an amount below 0 is allowed.

    Raises:
        ProblemError: it is no such amount.
    """
    text = (value if isinstance(value, str) else f"{Decimal(repr(value)):f}").removesuffix(".0")
    try:
        amount = from_signed_gpu_hours(text)
    except MoneyError:
        amount = 0
    if amount == 0 or (amount < 0 and not negative):
        raise invalid(field, value, _SIGNED if negative else _ALLOWED)
    return text


def name_of_key(caller: str, key: str) -> str:
    """The name of an object that was ordered with an Idempotency-Key: one for each caller and key.

    https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/

    Raises:
        ProblemError: the key is empty or too long.
    """
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise invalid("Idempotency-Key", key, f"1 to {MAX_KEY_LENGTH} characters, new ones for each order")
    return f"rest-{sha256(json.dumps([caller, key]).encode()).hexdigest()[:32]}"


def order_name(caller: str, given: str | None, key: str | None, kind: str) -> str:
    """The name of an ordered object: the one that was given, else the one that its Idempotency-Key stands for.

    Raises:
        ProblemError: there is neither, or the key is empty or too long.
    """
    if given is not None:
        return given
    if key is None:
        raise missing_key(f', or the field "name" with the name of the {kind}')
    return name_of_key(caller, key)


def known_budget(book: Book, name: str) -> None:
    """Refuses an order for what is no budget.

    Raises:
        ProblemError: there is no GPUBudget of that name.
    """
    figures = book.budget(name)
    if figures is None or not is_budget(figures):
        raise invalid("budget", name, "the name of a GPUBudget; GET /v1/budgets lists them")


def unused_name(book: Book, item: Json, store: OrderStore) -> None:
    """Refuses an order under a name that its budget's ledger holds of an object that is there no more.

    Raises:
        ProblemError: it would be made, and nothing would come of it.
    """
    name, budget = item["metadata"]["name"], item["spec"]["budget"]
    if book.has_taken(budget, item["kind"], name) and store.read(name) is None:
        detail = (
            f"the ledger of {budget!r} holds {name!r} already, whose {item['kind']} was deleted since: each name "
            "counts once; choose another name or Idempotency-Key"
        )
        raise ProblemError(409, "conflict", detail)


def missing_key(alternative: str) -> ProblemError:
    """An order without a name would be made twice when its answer is lost."""
    detail = f"Idempotency-Key: given nothing; allowed: a text that is new for each order{alternative}"
    fault = {"field": "Idempotency-Key", "given": "nothing", "allowed": "a text that is new for each order"}
    return ProblemError(400, "no-idempotency-key", detail, (fault,))


def _same(spec: Json, wanted: Json) -> bool:
    """Whether two specs order one thing, however they write its amounts and moments."""
    try:
        return _plain(spec) == _plain(wanted)
    except (MoneyError, TimeError):
        return False


def _plain(spec: Json) -> Json:
    plain = {key: value for key, value in spec.items() if key != "requestedBy"}
    moments = {key: parse_instant(plain[key]) for key in _MOMENTS if plain.get(key)}
    return {**plain, "gpuHours": from_signed_gpu_hours(plain.get("gpuHours")), **moments}
