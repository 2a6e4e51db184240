"""An API server's store in memory: objects by path, each with a resourceVersion."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jsonpatch

from fairgpu.cluster.api import JSON_PATCH, MERGE_PATCH, PATCH_FAILED, ApiError, Json, KubernetesAPI


class StoredObjects(KubernetesAPI):
    """Answers get, create, replace and patch as an API server does, with 404, 409 and 422.

    Attributes:
        before: called before each request with its verb and path; it may raise, or change the store.
    """

    def __init__(self) -> None:
        self.before: Callable[[str, str], None] = lambda _verb, _path: None
        self._objects: dict[str, Json] = {}
        self._versions = itertools.count(1)

    def put(self, path: str, item: Json) -> None:
        """Stores an object in place of any other at its path, without a request."""
        metadata = {**item.get("metadata", {}), "resourceVersion": str(next(self._versions))}
        self._objects[path] = copy.deepcopy({**item, "metadata": metadata})

    def remove(self, path: str) -> None:
        del self._objects[path]

    def has(self, path: str) -> bool:
        return path in self._objects

    def get(self, path: str, query: Mapping[str, str | int] | None = None, *, most_bytes: int | None = None) -> Json:
        assert query is None
        assert most_bytes is None
        self.before("get", path)
        return copy.deepcopy(self._stored(path))

    def create(self, path: str, body: Json, query: Mapping[str, str | int] | None = None) -> Json:
        assert query is None
        self.before("create", path)
        name = f"{path}/{body['metadata']['name']}"
        if name in self._objects:
            raise ApiError(409, "AlreadyExists", f"{name} already exists")
        self.put(name, body)
        return copy.deepcopy(self._objects[name])

    def replace(self, path: str, body: Json) -> Json:
        self.before("replace", path)
        given = body["metadata"].get("resourceVersion")
        if given is not None and given != self._stored(path)["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", f"{path} has been modified")
        self.put(path, body)
        return copy.deepcopy(self._objects[path])

    def patch(
        self, path: str, body: Any, content_type: str = MERGE_PATCH, query: Mapping[str, str | int] | None = None
    ) -> Json:
        assert query is None
        self.before("patch", path)
        stored = self._stored(path)
        if content_type == JSON_PATCH:
            try:
                changed = jsonpatch.apply_patch(stored, body)
            except jsonpatch.JsonPatchTestFailed as error:
                raise ApiError(422, "Invalid", PATCH_FAILED) from error
        else:
            changed = {**stored, **{key: {**stored.get(key, {}), **value} for key, value in body.items()}}
        if changed != stored:
            self.put(path, changed)
        return copy.deepcopy(self._objects[path])

    def _stored(self, path: str) -> Json:
        if path not in self._objects:
            raise ApiError(404, "NotFound", f"{path} not found")
        return self._objects[path]
