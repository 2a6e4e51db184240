"""Where what was ordered over REST is kept: on the API server, or in a standalone folder."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml

from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from timekeeper.rules.timestamps import format_instant
from timekeeper.sources.cluster import GRANTS
from timekeeper.sources.source import ExistsError, SourceError


class ClusterOrders:
    """Objects of an API server, which refuses what their schema does not allow (as an ApiError)."""

    def __init__(self, api: KubernetesAPI, collection: str = GRANTS) -> None:
        """Names the API server and the path of the collection."""
        self._api = api
        self._collection = collection

    def create(self, item: Json) -> Json:
        """Creates an object."""
        try:
            return self._api.create(self._collection, item)
        except ApiError as error:
            if error.conflict:
                raise ExistsError(error.message) from error
            raise

    def read(self, name: str) -> Json | None:
        """The object of that name."""
        try:
            return self._api.get(f"{self._collection}/{name}")
        except ApiError as error:
            if error.not_found:
                return None
            raise


class FolderOrders:
    """Objects of a folder: grants/NAME.json or corrections/NAME.json, and those that stand in budgets.yaml."""

    def __init__(self, folder: Path, now: Callable[[], int], kind: str = "GPUGrant") -> None:
        """`now` is nanoseconds since 1970: what an API server would stamp."""
        self._folder = folder
        self._kind = kind
        self._what = kind.removeprefix("GPU").lower()
        self._now = now

    def create(self, item: Json) -> Json:
        """Writes the file in one step, unless there is a grant of that name."""
        name = item["metadata"]["name"]
        if self._written_by_hand(name) is not None:
            raise ExistsError(f"a {self._what} {name!r} is there already")
        metadata = {**item["metadata"], "uid": f"{self._what}-{name}", "creationTimestamp": format_instant(self._now())}
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
            raise ExistsError(f"a {self._what} {name!r} is there already") from error
        except OSError as error:
            raise SourceError(str(error)) from error
        return created

    def read(self, name: str) -> Json | None:
        """The object of that name."""
        try:
            found: Json = json.loads(self._file(name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return self._written_by_hand(name)
        except (OSError, ValueError) as error:
            raise SourceError(str(error)) from error
        return found

    def _file(self, name: str) -> Path:
        return self._folder / f"{self._what}s" / f"{name}.json"

    def _written_by_hand(self, name: str) -> Json | None:
        try:
            documents = list(yaml.safe_load_all((self._folder / "budgets.yaml").read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, yaml.YAMLError) as error:
            raise SourceError(f"budgets.yaml: {error}") from error
        for item in documents:
            if (
                isinstance(item, dict)
                and item.get("kind") == self._kind
                and item.get("metadata", {}).get("name") == name
            ):
                return item
        return None
