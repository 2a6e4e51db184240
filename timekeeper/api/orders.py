"""Orders over REST: a request becomes a GPUGrant or a GPUCorrection, whose name makes a repeated request harmless.

An order is stored as an object of the API server, or as a file of the folder in its place. The leader applies it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import yaml

from fairgpu import names, yaml_text
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.json_values import mapping
from timekeeper.api.figures import Book, is_budget
from timekeeper.api.models import CorrectionRequest
from timekeeper.api.problems import ProblemError, invalid
from timekeeper.domain.money import MAX_GPU_HOURS, MoneyError, from_signed_gpu_hours
from timekeeper.domain.orders import no_less_than
from timekeeper.domain.timestamps import Instant, TimeError, format_instant, parse_instant
from timekeeper.sources.base import ExistsError, SourceError
from timekeeper.sources.kubernetes import GRANTS

MAX_KEY_LENGTH = 255
_ALLOWED = f"a number above 0 and up to {MAX_GPU_HOURS} with at most six decimal places, such as 2.5"
_SIGNED = f"a number from -{MAX_GPU_HOURS} to {MAX_GPU_HOURS} but 0 with at most six decimal places, such as -2.5"
_MOMENTS = ("expires", "effectivePeriod")
_LONGEST_NAME = 256
"""The maxLength of `spec.requestedBy` in the CRDs."""
_COMMON = ("budget", "gpuHours", "reason", "requestedBy")
"""The fields of the spec of every order."""


@dataclass(frozen=True, slots=True)
class GrantOrder:
    """An order of a grant of GPU-hours to a budget.

    Attributes:
        name: the name of the GPUGrant.
        budget: the budget's name.
        gpu_hours: the amount as decimal text; below 0 it takes money away.
        reason: the reason for people.
        requested_by: the name of the user who ordered the grant.
        expires: the time of the grant's expiry, as an RFC 3339 timestamp; empty for the end of the present period.
    """

    name: str
    budget: str
    gpu_hours: str
    reason: str
    requested_by: str
    expires: str = ""


def grant_object(order: GrantOrder) -> Json:
    """Returns an order of a grant as a GPUGrant object."""
    common = _spec_of(order.budget, order.gpu_hours, order.reason, order.requested_by)
    return order_object("GPUGrant", order.name, {**common, "expires": order.expires or None})


def expiry_text(value: str | None, gpu_hours: str, now: Instant) -> str:
    """Checks the expiry of a grant that was ordered, and returns it unchanged; returns an empty text for None.

    Args:
        value: the expiry as an RFC 3339 timestamp; None for a grant that expires with its period.
        gpu_hours: the grant's amount as decimal text.

    Raises:
        ProblemError: the expiry is not a timestamp or has passed already, or the grant takes money away.
    """
    if value is None:
        return ""
    try:
        expires = parse_instant(value)
    except TimeError:
        expires = 0
    if expires <= now:
        raise invalid("expires", value, "an RFC 3339 timestamp that is still to come, such as 2026-12-31T23:00:00Z")
    if gpu_hours.startswith("-"):
        raise invalid("expires", value, "nothing where gpuHours is below 0: what is taken away does not come back")
    return value


def correction_object(name: str, wanted: CorrectionRequest, effective: str, caller: str) -> Json:
    """Returns an order of a correction as a GPUCorrection object.

    Args:
        name: the name of the GPUCorrection.
        wanted: the request's body, which has all other fields.
        effective: an RFC 3339 timestamp in the period to correct.
        caller: the name of the user who orders it.

    Raises:
        ProblemError: the amount is invalid.
    """
    gpu_hours = gpu_hours_text("gpuHours", wanted.gpuHours, negative=True)
    common = _spec_of(wanted.budget, gpu_hours, wanted.reason, caller)
    spec = {**common, "effectivePeriod": effective, "namespace": wanted.namespace}
    return order_object("GPUCorrection", name, spec)


def effective_text(value: str, now: Instant) -> str:
    """Checks the timestamp that names the period of a correction, and returns it unchanged.

    Args:
        value: an instant in the period to correct, as an RFC 3339 timestamp.

    Raises:
        ProblemError: the value is not an RFC 3339 timestamp, or lies in the future.
    """
    try:
        effective = parse_instant(value)
    except TimeError:
        effective = now + 1
    if effective > now:
        allowed = "an RFC 3339 timestamp in a period that has begun, such as 2026-01-01T00:00:00Z"
        raise invalid("effectivePeriod", value, allowed)
    return value


def acceptable(book: Book, spec: Json) -> None:
    """Checks, by the present ledger, that the leader will not refuse a correction.

    Args:
        spec: the spec of the GPUCorrection.

    Raises:
        ProblemError: the budget has never paid for the namespace, has no such period, or has spent less in the period
            than the correction gives back.
    """
    budget, namespace = spec["budget"], spec.get("namespace")
    if namespace is not None and not book.has_paid_for(budget, namespace):
        raise invalid("namespace", namespace, f"a namespace that {budget!r} pays or has paid for, or nothing")
    spent = book.spent_in_period_of(budget, parse_instant(spec["effectivePeriod"]))
    if spent is None:
        allowed = f"a moment in a period that the ledger of {budget!r} knows"
        raise invalid("effectivePeriod", spec["effectivePeriod"], allowed)
    if from_signed_gpu_hours(spec["gpuHours"]) < min(-spent, 0):
        raise invalid("gpuHours", spec["gpuHours"], no_less_than(spent))


def _spec_of(budget: str, gpu_hours: str, reason: str, author: str) -> Json:
    return dict(zip(_COMMON, (budget, gpu_hours, reason, author[:_LONGEST_NAME]), strict=True))


def order_object(kind: str, name: str, spec: Json) -> Json:
    """Returns the object of an order, as the API server takes it.

    Args:
        kind: GPUGrant or GPUCorrection.
        spec: the fields of the object's spec; fields that are None are left out.
    """
    given = {key: value for key, value in spec.items() if value is not None}
    return {"apiVersion": names.BUDGET_API, "kind": kind, "metadata": {"name": name}, "spec": given}


class OrderStore(Protocol):
    """Stores the objects of one kind of orders: GPUGrants or GPUCorrections.

    Both methods may raise ApiError or SourceError, if the API server or the folder fails or refuses.
    """

    def create(self, item: Json) -> Json:
        """Stores the object of a new order; returns it as stored.

        Raises:
            ExistsError: an object of that name exists.
            ProblemError: no order is accepted in the timekeeper's mode.
        """

    def read(self, name: str) -> Json | None:
        """Returns the object of the order with this name; None if there is none."""


def place_order(
    book: Book, item: Json, store: OrderStore, check: Callable[[Json], None] | None = None
) -> tuple[Json, bool]:
    """Creates the object of an order, or finds the object that an earlier request for the same order made.

    Args:
        item: the object to create.
        store: stores the objects of the order's kind.
        check: raises a ProblemError for a spec that the leader would refuse; called for a new order only. None for no
            check.

    Returns:
        The object as stored, and whether it is new.

    Raises:
        ProblemError: another order has or had the name, the check refuses the order, or the store accepts no orders.
    """
    unused_name(book, item, store)
    if check is not None and store.read(item["metadata"]["name"]) is None:
        check(item["spec"])
    return place(item, store)


def common_fields(stored: Json, noun: str) -> tuple[dict[str, str], Json]:
    """Returns the fields that every answer to an order has, such as the name, and then the order's spec as stored.

    Args:
        stored: the object of the order as the store answered it.
        noun: the noun for the order in the error: grant or correction.

    Raises:
        ProblemError: the stored object has no metadata or no spec.
    """
    metadata, spec = _ordered(stored, noun)
    return {"name": str(metadata.get("name", "")), **{field: str(spec.get(field, "")) for field in _COMMON}}, spec


def _ordered(stored: Json, noun: str) -> tuple[Json, Json]:
    """Returns the metadata and the spec of a stored order.

    Raises:
        ProblemError: the object lacks its metadata or its spec; the message calls the order by `noun`, which is grant
            or correction.
    """
    metadata, spec = stored.get("metadata"), stored.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        raise ProblemError(503, "unavailable", f"the {noun} was made, and came back unreadable; ask again")
    return metadata, spec


def place(item: Json, store: OrderStore) -> tuple[Json, bool]:
    """Creates the object of an order, or returns the existing object of the same name that orders the same.

    An earlier request, also of another caller, may have made the existing object.

    Args:
        item: the object to create.
        store: stores the objects of the order's kind.

    Returns:
        The object as stored, and whether it is new.

    Raises:
        ProblemError: an object of that name orders something else, or the store accepts no orders.
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
    """Returns an amount of GPU-hours as decimal text; a JSON number becomes the shortest text that equals it.

    Args:
        field: the name of the field, for the error.
        value: the given amount.
        negative: whether an amount below 0 is allowed.

    Raises:
        ProblemError: the value is no amount of GPU-hours, is 0, or is below 0 although that is not allowed.
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
    """Returns the name of an order, made from caller and Idempotency-Key, so that a repeated request has the same name.

    See https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/.

    Args:
        caller: the caller's name.
        key: the value of the header Idempotency-Key.

    Raises:
        ProblemError: the key is empty or longer than MAX_KEY_LENGTH.
    """
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise invalid("Idempotency-Key", key, f"1 to {MAX_KEY_LENGTH} characters, new ones for each order")
    return f"rest-{sha256(json.dumps([caller, key]).encode()).hexdigest()[:32]}"


def order_name(caller: str, given: str | None, key: str | None, kind: str) -> str:
    """Returns the name of an order: the given name, or else a name made from caller and Idempotency-Key.

    Args:
        caller: the caller's name.
        given: the name in the request's body; None for none.
        key: the value of the header Idempotency-Key; None for none.
        kind: the noun for the order in the error: grant or correction.

    Raises:
        ProblemError: neither a name nor a key is given, or the key is empty or longer than MAX_KEY_LENGTH.
    """
    if given is not None:
        return given
    if key is None:
        raise missing_key(f', or the field "name" with the name of the {kind}')
    return name_of_key(caller, key)


def known_budget(book: Book, name: str) -> None:
    """Checks that the store has figures of a GPUBudget with the name in an order.

    Raises:
        ProblemError: the store has no readable figures of a GPUBudget with that name.
    """
    figures = book.budget(name)
    if figures is None or not is_budget(figures):
        raise invalid("budget", name, "the name of a GPUBudget; GET /v1/budgets lists them")


def unused_name(book: Book, item: Json, store: OrderStore) -> None:
    """Checks that the name of a new order is not that of an applied order whose object was deleted.

    The ledger applies each name once, and would ignore the new order.

    Args:
        item: the object of the new order.
        store: stores the objects of the order's kind.

    Raises:
        ProblemError: the name was used.
    """
    name, budget = item["metadata"]["name"], item["spec"]["budget"]
    if book.has_taken(budget, item["kind"], name) and store.read(name) is None:
        detail = (
            f"the ledger of {budget!r} holds {name!r} already, whose {item['kind']} was deleted since: each name "
            "counts once; choose another name or Idempotency-Key"
        )
        raise ProblemError(409, "conflict", detail)


def missing_key(alternative: str) -> ProblemError:
    """Returns the problem of an order without a name: a request repeated after a lost answer would order twice.

    Args:
        alternative: the end of the message, which says how else the request can name the order; empty for no other way.
    """
    detail = f"Idempotency-Key: given nothing; allowed: a text that is new for each order{alternative}"
    fault = {"field": "Idempotency-Key", "given": "nothing", "allowed": "a text that is new for each order"}
    return ProblemError(400, "no-idempotency-key", detail, (fault,))


def _same(spec: Json, wanted: Json) -> bool:
    """Returns whether two specs state the same order; the requesting user does not count.

    The result is False if a value cannot be parsed.
    """
    try:
        return _plain(spec) == _plain(wanted)
    except (MoneyError, TimeError):
        return False


def _plain(spec: Json) -> Json:
    plain = {key: value for key, value in spec.items() if key != "requestedBy"}
    moments = {key: parse_instant(plain[key]) for key in _MOMENTS if plain.get(key)}
    return {**plain, "gpuHours": from_signed_gpu_hours(plain.get("gpuHours")), **moments}


class ClusterOrders:
    """Stores orders as objects of an API server, which checks them by its schemas."""

    def __init__(self, api: KubernetesAPI, collection: str = GRANTS) -> None:
        """Makes the store of one kind of orders; `collection` is the API server's path of the grants or corrections."""
        self._api = api
        self._collection = collection

    def create(self, item: Json) -> Json:
        """Creates the object of an order at the API server; returns it as stored.

        Raises:
            ExistsError: an object of that name exists.
            ApiError: the API server refuses the object, or does not answer.
        """
        try:
            return self._api.create(self._collection, item)
        except ApiError as error:
            if error.conflict:
                raise ExistsError(error.message) from error
            raise

    def read(self, name: str) -> Json | None:
        """Returns the object of the order with this name from the API server; None if there is none.

        Raises:
            ApiError: the API server refuses the request, or does not answer.
        """
        try:
            return self._api.get(f"{self._collection}/{name}")
        except ApiError as error:
            if error.not_found:
                return None
            raise


class NoOrders:
    """Stores no orders: in the mode look no order is accepted."""

    def __init__(self, place: str) -> None:
        """Makes the store.

        Args:
            place: the object in which allowances are changed, since there are no orders; errors name it to the user.
        """
        self._place = place

    def create(self, item: Json) -> Json:
        """Raises ProblemError for any order: in the mode look no order is accepted.

        Raises:
            ProblemError: always.
        """
        detail = (
            f"a {item['kind']} cannot be made where mode is look: no order is applied there; change the budget's "
            f"allowance in {self._place} instead"
        )
        raise ProblemError(409, "conflict", detail)

    def read(self, _name: str) -> Json | None:
        """Returns None: in the mode look there are no orders."""
        return None


class FolderOrders:
    """Stores orders as files of a folder: grants/NAME.json or corrections/NAME.json.

    It also reads the orders in the folder's file budgets.yaml.
    """

    def __init__(self, folder: Path, now: Callable[[], Instant], kind: str = "GPUGrant") -> None:
        """Makes the store of the orders of one kind.

        Args:
            folder: the folder that stands in for a cluster.
            now: returns nanoseconds since 1970, for the orders' creation timestamps.
            kind: GPUGrant or GPUCorrection.
        """
        self._folder = folder
        self._kind = kind
        self._noun = kind.removeprefix("GPU").lower()
        self._now = now

    def create(self, item: Json) -> Json:
        """Creates the file of an order in one step; returns its content.

        Raises:
            ExistsError: an order of that name exists.
            SourceError: the file cannot be written, or budgets.yaml cannot be read.
        """
        name = item["metadata"]["name"]
        if self._written_by_hand(name) is not None:
            raise ExistsError(f"a {self._noun} {name!r} is there already")
        metadata = {**item["metadata"], "uid": f"{self._noun}-{name}", "creationTimestamp": format_instant(self._now())}
        created = {**item, "metadata": metadata}
        file = self._file(name)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor, beside = tempfile.mkstemp(prefix=".", dir=file.parent)
            with os.fdopen(descriptor, "w") as stream:
                json.dump(created, stream)
            try:
                os.link(beside, file)
            finally:
                Path(beside).unlink()
        except FileExistsError as error:
            raise ExistsError(f"a {self._noun} {name!r} is there already") from error
        except OSError as error:
            raise SourceError(str(error)) from error
        return created

    def read(self, name: str) -> Json | None:
        """Returns the object of the order with this name from the folder's files; None if there is none.

        Raises:
            SourceError: the order's file, or budgets.yaml, cannot be read.
        """
        try:
            order: Json = json.loads(self._file(name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return self._written_by_hand(name)
        except (OSError, ValueError) as error:
            raise SourceError(str(error)) from error
        return order

    def _file(self, name: str) -> Path:
        return self._folder / f"{self._noun}s" / f"{name}.json"

    def _written_by_hand(self, name: str) -> Json | None:
        try:
            documents = yaml_text.load_all((self._folder / "budgets.yaml").read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            raise SourceError(f"budgets.yaml: {error}") from error
        for item in documents:
            if (
                isinstance(item, dict)
                and item.get("kind") == self._kind
                and mapping(item.get("metadata")).get("name") == name
            ):
                return item
        return None
