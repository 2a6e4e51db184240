"""The faults of this node's GPUs, which outlive the agent: `ROOT/faults.json`.

`{"faults":{"GPU-...":{"why":"Xid 79","atSeconds":71.5}},"doubleBitErrors":{"GPU-...":0}}`. Times are seconds of the
monotonic clock, which goes on through a restart of the agent. After a boot the file is removed
(nodeagent.containers.folders). An admin who removes the file declares that the GPUs have no fault. A GPU that still
fails is fenced again at the next look.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import structlog

from nodeagent.containers.folders import put
from nodeagent.offer import Fault

_log = structlog.get_logger(__name__)

NAME = "faults.json"


class Faults:
    """The last fault of each of the node's GPUs, and each GPU's count of double-bit memory errors; kept in a file.

    While the host has no room for the file, they are kept in memory. A file of another form counts as empty.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._faults: dict[str, Fault] = {}
        self._double_bit_errors: dict[str, int] = {}
        self._is_saved = True

    def by_uuid(self) -> dict[str, Fault]:
        """Returns the last fault of each GPU that had one since the host booted, keyed by the GPU's uuid.

        An admin who removes the file clears the faults.
        """
        with self._lock:
            self._read()
            return dict(self._faults)

    def note(self, uuid: str, fault: Fault) -> None:
        """Stores the fault of the GPU with this uuid, in place of an earlier one."""
        with self._lock:
            self._read()
            self._faults[uuid] = fault
            self._write()

    def note_double_bit_errors(self, uuid: str, errors: int, fault: Fault) -> None:
        """Stores a GPU's count of double-bit memory errors, and `fault` if the count has grown since the last call.

        Errors that were counted before the first call are no fault.
        """
        with self._lock:
            self._read()
            before = self._double_bit_errors.get(uuid)
            if before == errors:
                return
            self._double_bit_errors[uuid] = errors
            if before is not None and errors > before:
                self._faults[uuid] = fault
            self._write()

    def _read(self) -> None:
        if not self._is_saved:
            self._write()
            return
        try:
            document = json.loads(self._path.read_bytes())
            faults = {
                str(uuid): Fault(str(fault["why"]), float(fault["atSeconds"]))
                for uuid, fault in document["faults"].items()
            }
            errors = {str(uuid): int(count) for uuid, count in document["doubleBitErrors"].items()}
        except FileNotFoundError:
            faults, errors = {}, {}
        except OSError as error:
            _log.error("faults unreadable", path=str(self._path), error=repr(error))
            return  # the known faults stay
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            _log.error("faults unreadable", path=str(self._path), error=repr(error))
            faults, errors = {}, {}
        self._faults, self._double_bit_errors = faults, errors

    def _write(self) -> None:
        document = {
            "faults": {uuid: {"why": each.why, "atSeconds": each.at_seconds} for uuid, each in self._faults.items()},
            "doubleBitErrors": self._double_bit_errors,
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            put(self._path, json.dumps(document, separators=(",", ":")).encode(), 0o600)
            self._is_saved = True
        except OSError as error:
            self._is_saved = False
            _log.warning("faults not written", path=str(self._path), error=str(error))
