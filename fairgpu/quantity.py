"""Parses Kubernetes quantities exactly.

The grammar is that of apimachinery's `resource.Quantity`
(https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/): a signed decimal and either a
binary suffix (Ki to Ei), a decimal suffix (n u m, none, k M G T P E) or a decimal exponent (e3, E3).
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, Final

MAX_LENGTH = 64
MAX_EXPONENT = 30
MAX_QUANTITY = 2**63 - 1
"""The largest quantity that the API server holds, in an int64."""

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))"
    r"(?:(?P<suffix>Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]{1,4}))?"
)
PLAIN_DIGITS: Final = 18
"""The most digits of a number that always fits into an int64; nearly every manifest has fewer."""
_SCALE = {
    **{suffix: Fraction(1024**power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
    **{suffix: Fraction(1000**power) for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{suffix: Fraction(1, 1000**power) for power, suffix in enumerate(("m", "u", "n"), start=1)},
}


MIB: Final = 2**20
_WITH_BYTES = re.compile(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,6})?) ?(?P<suffix>[KMGTPE]i?|k)?(?P<bytes>[bB])?")
"""An amount of bytes as people write it: `2Gi`, `4096MiB`, `4 GB`."""


class QuantityError(ValueError):
    """A value is not a quantity of Kubernetes, or the field cannot hold it; the message says why."""


def parse_quantity(value: Any) -> Fraction:
    """Returns the exact number of a quantity of Kubernetes, such as `1.5Gi`.

    The function accepts what the API server accepts in JSON: a string, a number, or null, which counts as 0. It refuses
    a boolean, a list and a map.

    Args:
        value: the quantity, as JSON.

    Raises:
        QuantityError: the value is not in the grammar, is longer than 64 characters, or has an exponent beyond 30.
    """
    if value is None:
        return Fraction(0)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise QuantityError("it is no quantity")
    if isinstance(value, int) and abs(value) >= 10**MAX_LENGTH:
        raise QuantityError(f"it is longer than {MAX_LENGTH} characters")
    text = repr(value) if isinstance(value, float) else str(value)
    if len(text) > MAX_LENGTH:
        raise QuantityError(f"it is longer than {MAX_LENGTH} characters")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise QuantityError("it is no quantity")
    number = Fraction(match["number"])
    if match["suffix"]:
        return number * _SCALE[match["suffix"]]
    if match["exponent"]:
        exponent = int(match["exponent"])
        if abs(exponent) > MAX_EXPONENT:
            raise QuantityError(f"its exponent passes {MAX_EXPONENT}")
        return number * Fraction(10) ** exponent
    return number


def parse_count(value: Any) -> int:
    """Returns the number of units in a quantity of an extended resource: whole, not negative, and not in bytes.

    A binary suffix is refused because these resources carry their unit in their name: `2Gi` of a resource counted in
    MiB would be 2147483648 MiB to the API server, which no author means.

    Args:
        value: the quantity, as JSON.

    Raises:
        QuantityError: the value is not a quantity, or is negative, fractional, beyond int64, or has a binary suffix.
    """
    if isinstance(value, str) and len(value) <= PLAIN_DIGITS and value.isascii() and value.isdigit():
        return int(value)
    number = parse_quantity(value)
    if number < 0:
        raise QuantityError("it is negative")
    if isinstance(value, str) and value.endswith("i"):
        raise QuantityError("it has a suffix of bytes, and the unit is already in the resource's name")
    if number.denominator != 1:
        raise QuantityError("it is not a whole number")
    if number > MAX_QUANTITY:
        raise QuantityError(f"it passes {MAX_QUANTITY}")
    return int(number)


def memory_unit_name(unit_mib: int) -> str:
    """Returns the name of a unit of memory for people: `MiB`, `GiB`, or for other sizes such as `blocks of 256 MiB`.

    Args:
        unit_mib: the size of one unit, in MiB.
    """
    return {1: "MiB", 1024: "GiB"}.get(unit_mib, f"blocks of {unit_mib} MiB")


def in_memory_units(text: str, unit_mib: int) -> str | None:
    """Returns an amount of bytes, such as `2Gi` or `4 GB`, as a number of units of memory, rounded up.

    Returns None for a text that is no number with a suffix, and for 0 bytes. Faults use the result as advice.

    Args:
        text: the amount as an author wrote it.
        unit_mib: the size of one unit, in MiB.
    """
    match = _WITH_BYTES.fullmatch(text.strip())
    if match is None or not (match["suffix"] or match["bytes"]):
        return None
    suffix = {"K": "k"}.get(match["suffix"], match["suffix"])
    amount = Fraction(match["number"]) * (_SCALE[suffix] if suffix else 1)
    units = -(-amount // (unit_mib * MIB))
    return str(units) if units > 0 else None
