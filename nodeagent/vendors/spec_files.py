"""Reads the CDI specs that a vendor's toolkit writes on the host, and tolerates a file that is just being written.

`nvidia-ctk cdi generate > FILE` empties the file at its start and fills it later. If a spec were missing at one look,
its GPUs would be withheld, and the kubelet would then fail each GPU pod that it admits.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

LARGEST_BYTES = 4 << 20
SETTLED_SECONDS = 2.0
"""The time after its last change from which a file counts as complete. A YAML file that is cut off may still be
valid."""
KEPT_SECONDS = 60.0
"""The time after its last change for which the last good content of a file counts, while the file is no document."""
FIRST_SECONDS = 10.0
"""The longest time that the first look waits for files that are being written, since no earlier content of them is
known."""
AGAIN_SECONDS = 1.0
"""The time after which the first look reads a file again that is not a document yet."""

Spec = Mapping[str, Any]
"""A CDI spec as a JSON object."""


@dataclass(frozen=True)
class Reading:
    """The content of the files in the folders of CDI specs.

    Attributes:
        specs: the specs of the vendor's devices in each folder, in the order of the folders and of the files' names. A
            device in a later folder takes the place of those of its name in earlier ones.
        unread: for each file that cannot be read, its path and the reason, as a clause for people.
    """

    specs: tuple[tuple[Spec, ...], ...] = ()
    unread: tuple[str, ...] = ()


class SpecFiles:
    """The files in some folders that may be CDI specs, with the last complete content of each.

    Args:
        folders: the folders of the specs; one that does not exist counts as empty.
        kind: the `kind` of the vendor's specs.
        clock: returns the present Unix time in seconds, to compare with the files' times of change.
        wait: sleeps for a number of seconds.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        kind: str,
        clock: Callable[[], float] = time.time,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._folders = folders
        self._kind = kind
        self._clock = clock
        self._wait = wait
        self._whole: dict[Path, Any] = {}
        self._is_first = True

    def read(self) -> Reading:
        """Reads the files; returns the vendor's specs, and which files cannot be read.

        If a file changed in the last SETTLED_SECONDS, or is no document and changed in the last KEPT_SECONDS, its
        earlier content counts, if any is known. The first call waits for such files, at most FIRST_SECONDS, since no
        earlier content of them is known. A file that was removed or cannot be opened does not count.
        """
        if self._is_first:
            self._is_first = False
            self._wait_until_whole()
        whole: dict[Path, Any] = {}
        unread = []
        specs = []
        for folder in self._folders:
            here = []
            for path in _files([folder]):
                try:
                    here.append(whole.setdefault(path, self._content(path)))
                except FileNotFoundError:
                    continue
                except (OSError, ValueError) as error:
                    unread.append(f"{path} cannot be read: {' '.join(str(error).split())}")
            specs.append(tuple(each for each in here if isinstance(each, dict) and each.get("kind") == self._kind))
        self._whole = whole
        return Reading(tuple(specs), tuple(unread))

    def _wait_until_whole(self) -> None:
        left_seconds = FIRST_SECONDS
        while (seconds := min(self._unsettled_seconds(), left_seconds)) > 0:
            self._wait(seconds)
            left_seconds -= seconds

    def _unsettled_seconds(self) -> float:
        """Returns the seconds after which a file that may be half written is to be read again; 0 if there is none."""
        seconds = 0.0
        for path in _files(self._folders):
            try:
                content, age_seconds = self._opened(path)
            except OSError:
                continue
            if 0 <= age_seconds < SETTLED_SECONDS:
                seconds = max(seconds, SETTLED_SECONDS - age_seconds)
            elif 0 <= age_seconds < KEPT_SECONDS and not _is_document(content, path):
                seconds = max(seconds, AGAIN_SECONDS)
        return seconds

    def _opened(self, path: Path) -> tuple[bytes, float]:
        """Returns a file's content, and the seconds since the file's last change.

        Raises:
            OSError: the file cannot be opened or read.
        """
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
            changed_at = os.fstat(file.fileno()).st_mtime  # after the content: a change in between counts, too
        return content, self._clock() - changed_at

    def _content(self, path: Path) -> Any:
        content, age_seconds = self._opened(path)
        if path in self._whole and 0 <= age_seconds < SETTLED_SECONDS:
            return self._whole[path]
        try:
            return _parsed(content, path)
        except ValueError:
            if path in self._whole and 0 <= age_seconds < KEPT_SECONDS:
                return self._whole[path]
            raise


def _files(folders: Iterable[Path]) -> Iterable[Path]:
    for folder in folders:
        yield from sorted([*folder.glob("*.json"), *folder.glob("*.yaml"), *folder.glob("*.yml")])


def _is_document(content: bytes, path: Path) -> bool:
    try:
        _parsed(content, path)
    except ValueError:
        return False
    return True


def _parsed(content: bytes, path: Path) -> Any:
    """Returns the document in a file's content, in values of JSON only, since a container's own spec is JSON.

    A value that JSON does not have, such as a date in YAML, becomes text.

    Raises:
        ValueError: the content is empty, larger than LARGEST_BYTES, or no JSON or YAML.
    """
    if len(content) > LARGEST_BYTES:
        raise ValueError(f"it is larger than {LARGEST_BYTES} bytes")
    if not content.strip():
        raise ValueError("it is empty")
    try:
        document = json.loads(content) if path.suffix == ".json" else yaml.safe_load(content)
        return json.loads(json.dumps(document, default=str, allow_nan=False))
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from error
    except Exception as error:  # PyYAML raises what Python does about a value that its tag does not fit
        raise ValueError(f"a value or a key is of a wrong kind ({type(error).__name__}: {error})") from error
