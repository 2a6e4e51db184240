"""Finds every number in a store that a test may change: in values, scores, entries and names.

Packed values are unpacked. A text without a whole number by itself, such as a name, a uid or a model, is no number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any

import redis

from timekeeper.domain.usage import Row, UsageFigures
from timekeeper.domain.usage_folding import pack, unfold
from timekeeper.ledger.codec import compact
from timekeeper.ledger.entries import LedgerEntry, pack_entries, pack_note, read_ending, unpack_entries, unpack_note

Path = tuple[str | int, ...]
Change = Callable[[], object]
_NUMBER = re.compile(r"-?[0-9]+")
_ENTRY_FIELDS = tuple(LedgerEntry.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Place:
    """A number in a store.

    Attributes:
        name: the key, and the position of the number in it: `KEY FIELD/PATH`; `#` is a number in a name.
        key: the Redis key.
        add_one: makes the number one more.
    """

    name: str
    key: str
    add_one: Change


def places(client: redis.Redis) -> list[Place]:
    """Returns every number in the store."""
    keys: Any = client.keys("*")
    return [place for key in sorted(keys) for place in _of_key(client, key.decode())]


@contextmanager
def one_more(client: redis.Redis, place: Place) -> Iterator[None]:
    """Makes a number one more for as long as a block lasts."""
    known: Any = client.dump(place.key)
    place.add_one()
    try:
        yield
    finally:
        client.restore(place.key, 0, known, replace=True)


def _of_key(client: redis.Redis, key: str) -> Iterator[Place]:
    kind: Any = client.type(key)
    yield from _OF_TYPE[kind.decode()](client, key)


def _of_string(client: redis.Redis, key: str) -> Iterator[Place]:
    value: Any = client.get(key)
    for path, changed in _changed_values(key, value):
        yield Place(f"{key} {path}", key, lambda changed=changed: client.set(key, changed))


def _of_set(client: redis.Redis, key: str) -> Iterator[Place]:
    members: Any = client.smembers(key)
    for member in sorted(members):
        for changed in _changed_names(member.decode()):
            yield Place(f"{key} #", key, lambda member=member, changed=changed: _rename(client, key, member, changed))


def _rename(client: redis.Redis, key: str, member: bytes, changed: str) -> None:
    client.srem(key, member)
    client.sadd(key, changed)


def _of_hash(client: redis.Redis, key: str) -> Iterator[Place]:
    fields: Any = client.hgetall(key)
    for field, value in sorted(fields.items()):
        name = field.decode()
        for path, changed in _changed_values(key, value):
            yield Place(f"{key} {name}/{path}", key, lambda name=name, changed=changed: client.hset(key, name, changed))
        for changed in _changed_names(name):
            yield Place(f"{key} #", key, lambda name=name, to=changed, value=value: _move(client, key, name, to, value))


def _move(client: redis.Redis, key: str, field: str, changed: str, value: bytes) -> None:
    client.hdel(key, field)
    client.hset(key, changed, value)


def _of_sorted_set(client: redis.Redis, key: str) -> Iterator[Place]:
    members: Any = client.zrange(key, 0, -1, withscores=True)
    for member, score in members:
        name = member.decode()
        yield Place(f"{key} {name}/score", key, lambda name=name: client.zincrby(key, 1, name))
        for changed in _changed_names(name):
            yield Place(f"{key} #", key, lambda name=name, to=changed, score=score: _swap(client, key, name, to, score))


def _swap(client: redis.Redis, key: str, member: str, changed: str, score: float) -> None:
    client.zrem(key, member)
    client.zadd(key, {changed: score})


def _of_stream(client: redis.Redis, key: str) -> Iterator[Place]:
    entries: Any = client.xrange(key)
    for at, (name, fields) in enumerate(entries):
        for field, value in fields.items():
            for path, changed in _changed_values(key, value, note=field == b"x"):
                others = [*entries]
                others[at] = (name, {**fields, field: changed})
                what = f"{key} {field.decode()}/{path}"
                yield Place(what, key, lambda others=others: _write_stream(client, key, others))
    if entries:
        (name, fields) = entries[-1]
        milliseconds, _, counter = name.decode().partition("-")
        for later in (f"{int(milliseconds) + 1}-{counter}", f"{milliseconds}-{int(counter) + 1}"):
            others = [*entries[:-1], (later, fields)]
            yield Place(f"{key} #", key, lambda others=others: _write_stream(client, key, others))


def _write_stream(client: redis.Redis, key: str, entries: list[Any]) -> None:
    client.delete(key)
    for name, fields in entries:
        client.xadd(key, fields, id=name)


_OF_TYPE = {
    "string": _of_string,
    "set": _of_set,
    "hash": _of_hash,
    "zset": _of_sorted_set,
    "stream": _of_stream,
}


def _changed_names(name: str) -> Iterator[str]:
    """Yields the name once for each number in it, with that number one more; blanks and dashes divide numbers."""
    for match in re.finditer(r"(?<![^ -])[0-9]+(?![^ -])", name):
        yield f"{name[: match.start()]}{str(int(match[0]) + 1).zfill(len(match[0]))}{name[match.end() :]}"


def _changed_values(key: str, value: bytes, *, note: bool = False) -> Iterator[tuple[str, bytes | str]]:
    """Yields, for each number in a value, its path and the value with that number one more."""
    if key.endswith(":segments"):
        yield from _changed_entries(unpack_entries(value))
    elif key.endswith(":folded"):
        yield from _changed_rows(unfold(value))
    elif note:
        yield from _changed_ending(unpack_note(value))
    else:
        yield from _changed_texts(value.decode())


def _changed_entries(entries: list[LedgerEntry]) -> Iterator[tuple[str, bytes]]:
    document = [list(astuple(entry)) for entry in entries]
    for path, changed in _changed_documents(document):
        yield f"{_ENTRY_FIELDS[int(path[1])]}", pack_entries([LedgerEntry(*parts) for parts in changed])
    for at, entry in enumerate(entries):
        for path, note in _changed_ending(entry.note):
            parts = [*astuple(entry)[:-1], unpack_note(note)]
            yield path, pack_entries([*entries[:at], LedgerEntry(*parts), *entries[at + 1 :]])


def _changed_ending(note: str) -> Iterator[tuple[str, bytes]]:
    if (ending := read_ending(note)) is not None:
        yield "start", pack_note(ending._replace(start=ending.start + 1))
        yield "end", pack_note(ending._replace(end=ending.end + 1))


def _changed_rows(rows: list[Row]) -> Iterator[tuple[str, bytes]]:
    for at, row in enumerate(rows):
        for name in ("hour", "hours"):
            changed = row._replace(**{name: getattr(row, name) + 1})
            yield name, pack([*rows[:at], changed, *rows[at + 1 :]])
        for name, figure in zip(UsageFigures._fields, row.figures, strict=True):
            if figure is not None:
                changed = row._replace(figures=row.figures._replace(**{name: figure + 1}))
                yield name, pack([*rows[:at], changed, *rows[at + 1 :]])


def _changed_texts(text: str) -> Iterator[tuple[str, str]]:
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if isinstance(document, dict | list):
        for path, changed in _changed_documents(document):
            yield "/".join(map(str, path)), compact(changed)
        return
    parts = text.split(" ")
    for at, part in enumerate(parts):
        bare = part.removeprefix("@")
        if _NUMBER.fullmatch(bare):
            more = part[: len(part) - len(bare)] + str(int(bare) + 1)
            yield str(at), " ".join([*parts[:at], more, *parts[at + 1 :]])


def _changed_documents(document: Any) -> Iterator[tuple[Path, Any]]:
    """Yields the path to each whole number of a JSON document, also in texts, and the document with it one more."""
    for path, value in _leaves(document, ()):
        changed = json.loads(json.dumps(document))
        inner = changed
        for part in path[:-1]:
            inner = inner[part]
        inner[path[-1]] = str(int(value) + 1) if isinstance(value, str) else value + 1
        yield path, changed


def _leaves(document: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(document, dict | list):
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for name, value in items:
            yield from _leaves(value, (*path, name))
    elif type(document) in {int, float} or (isinstance(document, str) and _NUMBER.fullmatch(document)):
        yield path, document
