"""Pages of long answers: a bounded number of items, and an opaque cursor for the next page."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence

from flask import request

from timekeeper.api.problems import invalid

DEFAULT_LIMIT = 200
MAX_LIMIT = 1000
MAX_CURSOR_LENGTH = 512


def only_parameters(*allowed: str) -> None:
    """Checks that the HTTP request has no query parameters but the allowed ones.

    Otherwise a misspelt parameter would be ignored, and the answer would have more than was asked for.

    Raises:
        ProblemError: the request has another parameter.
    """
    refuse_unknown(request.args, allowed)


def refuse_unknown(given: Iterable[str], allowed: Sequence[str]) -> None:
    """Checks that all given names of query parameters are among the allowed ones.

    Raises:
        ProblemError: a parameter is unknown.
    """
    for name in given:
        if name not in allowed:
            raise invalid(name, "a parameter", f"the parameters {', '.join(allowed)}")


def page_limit() -> int:
    """Returns the number of items that the HTTP request asks for by its parameter `limit`, else DEFAULT_LIMIT.

    Raises:
        ProblemError: the parameter is not a number from 1 to MAX_LIMIT.
    """
    return parse_limit(request.args.get("limit"), DEFAULT_LIMIT, MAX_LIMIT)


def parse_limit(text: str | None, default: int, most: int) -> int:
    """Parses the query parameter `limit`, the most items of an answer.

    Args:
        default: the result if the request does not have the parameter.
        most: the highest limit that is allowed.

    Raises:
        ProblemError: the text is not a number from 1 to `most`.
    """
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= most):
        raise invalid("limit", text, f"a whole number from 1 to {most}")
    return int(text)


def page_start() -> str:
    """Returns the key of the item after which the requested page begins; empty for the first page.

    Raises:
        ProblemError: no earlier answer can have contained the request's parameter `cursor`.
    """
    text = request.args.get("cursor", "")
    start = decoded_cursor(text)
    if start is None:
        raise invalid("cursor", text, "nothing, or the cursor of an earlier answer as it was")
    return start


def by_amount() -> bool:
    """Returns whether the HTTP request asks for the largest amounts first; such an answer has only one page.

    Raises:
        ProblemError: the request asks for an unknown order, or for a second page of the largest amounts.
    """
    order = request.args.get("order", "uid")
    if order not in {"uid", "amount"}:
        raise invalid("order", order, "uid, or amount for the largest first")
    if order == "amount" and request.args.get("cursor"):
        raise invalid("cursor", request.args["cursor"], "nothing with order=amount, which is one page")
    return order == "amount"


def cursor_after(item: str) -> str:
    """Returns the cursor of the page that begins after the item with this key, such as a name; the key is ASCII."""
    return base64.urlsafe_b64encode(item.encode("ascii")).rstrip(b"=").decode("ascii")


def decoded_cursor(text: str, longest: int = MAX_CURSOR_LENGTH) -> str | None:
    """Returns the key in a cursor that `cursor_after` made; None for a text that is no such cursor.

    Args:
        longest: the most characters of a cursor.
    """
    if len(text) > longest:
        return None
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode("ascii")
    except (ValueError, binascii.Error):
        return None
