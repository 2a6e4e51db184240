from __future__ import annotations

from typing import Any

from fairgpu.cluster.api import ApiError, Json, TooLargeError
from fairgpu.cluster.reflector import PAGE_BYTES, Collection, reflect


class Page(list[Json]):
    """A page that is not the first of its list."""


class API:
    """Answers lists and watches from a script; ends the reflection when that is over."""

    def __init__(self, lists: list[Any], watches: list[Any]) -> None:
        self.lists, self.watches, self.waits = lists, watches, list[float]()
        self.asked: list[tuple[int, int | None]] = []

    def get(self, _path: str, query: Any, most_bytes: int | None = None, **_options: Any) -> Json:
        self.asked.append((query["limit"], most_bytes))
        found = self.lists.pop(0)
        if isinstance(found, Exception):
            raise found
        more = {"continue": "on"} if self.lists and isinstance(self.lists[0], Page | TooLargeError) else {}
        return {"items": list(found), "metadata": {"resourceVersion": "1", **more}}

    def stream(self, _path: str, _query: Any, _idle: float, _decode: Any) -> list[Json]:
        found = self.watches.pop(0)
        if isinstance(found, Exception):
            raise found
        events: list[Json] = found
        return events

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return not self.lists and not self.watches


class View:
    def __init__(self) -> None:
        self.lists: list[list[Json]] = []
        self.changes: list[tuple[str, Json]] = []
        self.errors: list[str] = []

    def replaced(self, items: list[Json]) -> None:
        self.lists.append(items)

    def changed(self, kind: str, item: Json) -> None:
        self.changes.append((kind, item))

    def confirmed(self) -> None:
        """Does nothing."""

    def failed(self, error: ApiError) -> None:
        self.errors.append(error.reason)


def named(name: str, **more: str) -> Json:
    return {"metadata": {"name": name, "resourceVersion": "2"}, **more}


def followed(api: API, collection: Collection) -> View:
    view = View()
    reflect(api, collection, view, api.wait, lambda: 0.5)  # type: ignore[arg-type]
    return view


def test_the_collection_is_listed_again_after_a_while_whatever_goes_wrong() -> None:
    api = API([OSError("the token's file is away"), [named("a")], [named("b")]], [KeyError("unheard of"), []])
    view = followed(api, Collection("/pods", {}))
    assert view.lists == [[named("a")], [named("b")]]
    assert view.errors == ["OSError", "KeyError"]
    assert len([seconds for seconds in api.waits if seconds > 0]) == 2


def test_a_page_of_more_bytes_than_are_taken_is_asked_for_in_smaller_ones_down_to_single_objects() -> None:
    api = API([*[TooLargeError(PAGE_BYTES)] * 4, [named("a")]], [[]])
    assert followed(api, Collection("/pods", {})).lists == [[named("a")]]
    assert api.asked == [
        *[(size, PAGE_BYTES) for size in (500, 125, 31, 7)],
        (1, None),
    ]


def test_pages_grow_again_behind_the_objects_that_made_them_small() -> None:
    pages = [[named("a")], *(Page([named(f"p{number}")]) for number in range(10))]
    api = API([*[TooLargeError(PAGE_BYTES)] * 4, *pages], [[]])
    assert len(followed(api, Collection("/pods", {})).lists[0]) == 11
    assert [size for size, _ in api.asked[4:]] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 500, 500]


def test_a_page_that_is_too_large_in_the_middle_of_a_list_makes_the_next_ones_smaller() -> None:
    api = API([[named("a")], TooLargeError(PAGE_BYTES), Page([named("b")]), Page([named("c")])], [[]])
    assert followed(api, Collection("/pods", {})).lists == [[named("a"), named("b"), named("c")]]
    assert [size for size, _ in api.asked] == [500, 500, 125, 250]


def test_a_list_whose_continue_token_is_too_old_is_begun_anew_after_longer_and_longer_pauses() -> None:
    expired = ApiError(410, "Expired", "the provided continue parameter is too old")
    api = API([*[expired] * 9, [named("a")]], [[]])
    view = followed(api, Collection("/pods", {}))
    assert view.lists == [[named("a")]]
    assert view.errors == []
    assert [seconds for seconds in api.waits if seconds > 0] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_watch_that_is_too_old_each_time_does_not_list_without_a_pause() -> None:
    expired = ApiError(410, "Expired", "too old resource version")
    api = API([[named("a")], [named("b")], [named("c")]], [expired, expired, []])
    assert followed(api, Collection("/pods", {})).lists == [[named("a")], [named("b")], [named("c")]]
    assert [seconds for seconds in api.waits if seconds > 0] == [0.5, 1]


def test_objects_are_held_only_as_far_as_they_are_read() -> None:
    def read(item: Json) -> Json | None:
        return None if "other" in item else {"metadata": item["metadata"]}

    event = {"type": "MODIFIED", "object": named("a", ballast="x")}
    last = {"type": "MODIFIED", "object": named("b", other="x")}
    api = API([[named("a", ballast="x"), named("b", other="x")]], [[event, last], []])
    view = followed(api, Collection("/pods", {}, read))
    assert view.lists == [[named("a")]]
    assert view.changes == [("MODIFIED", named("a")), ("MODIFIED", named("b", other="x"))]
