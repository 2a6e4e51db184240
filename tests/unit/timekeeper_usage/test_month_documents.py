"""A month as a file: what is written is read again, and the same rows make the same bytes."""

from __future__ import annotations

import csv
import gzip
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timekeeper.domain.timestamps import DAY, HOUR, parse_instant
from timekeeper.domain.usage import Dimensions, Row, UsageFigures
from timekeeper.export.document import (
    HEADER,
    Account,
    DocumentError,
    closed_months,
    content_sha256,
    file_name,
    merge,
    month_named,
    read,
    window_of,
    write,
)

FIRST = parse_instant("2026-10-01T00:00:00Z") // HOUR

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)
amounts = st.integers(-(10**30), 10**30)
rows = st.builds(
    Row,
    st.integers(FIRST, FIRST + 30 * 24),
    st.integers(1, 24),
    st.builds(
        Dimensions,
        texts,
        texts,
        texts,
        texts,
        texts,
        st.dictionaries(texts, texts, max_size=2).map(lambda found: tuple(sorted(found.items()))),
    ),
    st.builds(UsageFigures, amounts, amounts, amounts, st.none() | amounts),
)
accounts = st.dictionaries(
    st.text("ab=-'@", min_size=1, max_size=4), st.lists(rows, min_size=1, max_size=4), max_size=4
)


def listed(found: dict[str, list[Row]]) -> list[Account]:
    return sorted(found.items())


def unlisted(body: bytes) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for account, row in read(body):
        found.setdefault(account, []).append(row)
    return found


@given(accounts)
@example({"a": [Row(FIRST, 1, Dimensions("team-a", owner="two\r\nlines"), UsageFigures())]})
def test_a_written_value_is_read_again(found: dict[str, list[Row]]) -> None:
    made = write(listed(found))
    assert unlisted(made.body) == found
    assert made.rows == sum(map(len, found.values()))
    assert write(listed(found)) == made
    assert content_sha256(made.body) == made.sha256


@given(accounts, accounts)
def test_a_merge_takes_each_account_from_the_store_or_else_from_the_file(
    old: dict[str, list[Row]], new: dict[str, list[Row]]
) -> None:
    more = UsageFigures(billed=-7, memory=3)
    new = {name: [row._replace(figures=row.figures.plus(more)) for row in old.get(name, new[name])] for name in new}
    merged = write(merge(read(write(listed(old)).body), listed(new)))
    assert unlisted(merged.body) == old | new
    assert write(merge(read(merged.body), listed(new))) == merged


@given(accounts.filter(bool), st.data())
def test_an_account_of_which_the_store_holds_less_time_than_the_file_replaces_nothing(
    old: dict[str, list[Row]], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(old)))
    place = data.draw(st.integers(0, len(old[name]) - 1))
    less = old[name][place]._replace(figures=old[name][place].figures.plus(UsageFigures(core=-1)))
    changed = [*old[name][:place], less, *old[name][place + 1 :]]
    with pytest.raises(DocumentError, match="part of it was lost"):
        write(merge(read(write(listed(old)).body), listed({name: changed})))


def test_a_spreadsheet_finds_amounts_in_both_units_and_no_formula() -> None:
    to = Dimensions("team-a", "n1", "A100", "Job/train", "=cmd()", (("team", "vision"),))
    row = Row(FIRST, 24, to, UsageFigures(86_400_000_000, 43_200_000_000, 1, None))
    (header, line) = csv.reader(io.StringIO(gzip.decompress(write([("research", [row])]).body).decode()))
    assert tuple(header) == HEADER
    assert dict(zip(header, line, strict=True)) == {
        "start": "2026-10-01T00:00:00Z",
        "end": "2026-10-02T00:00:00Z",
        "budget": "research",
        "namespace": "team-a",
        "node": "n1",
        "model": "A100",
        "owner": "Job/train",
        "user": "'=cmd()",
        "labels": '{"team":"vision"}',
        "billed_gpu_hours": "24.000000",
        "billed_micro_gpu_seconds": "86400000000",
        "core_gpu_hours": "12.000000",
        "core_micro_gpu_seconds": "43200000000",
        "memory_gpu_hours": "0.000000",
        "memory_micro_gpu_seconds": "1",
        "used_gpu_hours": "",
        "used_micro_gpu_seconds": "",
    }


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"start,end\r\n",
        gzip.compress(b"start,end\r\n"),
        gzip.compress(",".join(HEADER).encode() + b"\r\n1,2\r\n"),
        gzip.compress(",".join(HEADER).encode() + b"\r\n" + b"x," * 16 + b"x\r\n"),
        write([("a", [Row(FIRST, 1, Dimensions("n"), UsageFigures(1))] * 50)]).body[:-20],
        gzip.compress(b"\xff\xfe"),
    ],
    ids=["nothing", "text", "header", "short", "no-numbers", "cut", "no-utf-8"],
)
def test_a_value_that_is_no_month_is_refused(body: bytes) -> None:
    with pytest.raises(DocumentError):
        list(read(body))


@pytest.mark.parametrize(
    ("now", "months"),
    [
        ("2026-11-09T23:59:59Z", ["2026-09"]),
        ("2026-11-10T00:00:00Z", ["2026-09", "2026-10"]),
        ("2026-09-30T00:00:00Z", []),
    ],
)
def test_a_month_is_closed_a_day_after_its_last_hour_was_folded(now: str, months: list[str]) -> None:
    assert closed_months(parse_instant(now), 8, ["2026-09", "2026-11"]) == months


def test_nothing_is_closed_where_nothing_was_used() -> None:
    assert closed_months(parse_instant("2026-11-10T00:00:00Z"), 8, []) == []


def test_a_month_is_found_by_its_name() -> None:
    assert month_named(file_name("2026-10")) == "2026-10"
    assert window_of("2026-12").end == parse_instant("2027-01-01T00:00:00Z")
    assert window_of("2026-02").end - window_of("2026-02").start == 28 * DAY
    for name in ("usage-2026-13.csv.gz", "usage-2026-10.csv", ".usage-2026-10.csv.gz.x1", "usage-2026-10.csv.gz~"):
        assert month_named(name) is None
