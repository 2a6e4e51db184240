"""Counts how often a reconciliation of the leader goes from one file of the timekeeper to another.

    python tools/transitions.py [FOLDER]

FOLDER is the root of a checkout, the present folder by default; it may be an earlier commit. The scene is fixed: three
budgets, twelve pods of six namespaces, a grant; first a reconciliation in which an hour has passed, then one that
crosses the end of a period. A profile hook sees each call and return between Python functions; only files under
`timekeeper/` count, and a transition is a change of file between two that count.
"""

import importlib
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any


def main() -> None:
    """Prints the transitions of both reconciliations, and how many files took part."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    sys.path.insert(0, str(root))
    harness, servers = (
        first_module(*names)
        for names in (
            ("tests.support.ledger.harness", "tests.keeper_stage"),
            ("tests.support.servers.redis_server", "tests.redis_server"),
        )
    )
    with tempfile.TemporaryDirectory() as data, tempfile.TemporaryDirectory() as folder:
        server = servers.RedisServer(Path(data)).start()
        try:
            with server.client() as client:
                play(getattr(harness, "LedgerHarness", None) or harness.Stage, Path(folder), client, root)
        finally:
            server.stop()


def first_module(*names: str) -> Any:
    """The first of several modules that exists."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    message = f"none of {', '.join(names)} exists under {sys.path[0]}"
    raise SystemExit(message)


def play(harness: Any, folder: Path, client: Any, root: Path) -> None:
    """Sets the scene and counts two reconciliations of it."""
    stage = harness(folder, client)
    for budget in range(3):
        stage.budget(f"b{budget}", [f"n{budget}", f"m{budget}"])
    for pod in range(12):
        stage.pod(f"p{pod}", f"{'nm'[pod % 2]}{pod % 3}", core=50)
    stage.grant("g", "b0", 5)
    for _ in range(3):
        reconcile(stage, 60)
    month = 31 * 24 * 3600
    for name, seconds in (("an hour passed", 3600), ("a period ended", month)):
        stage.pass_time(seconds)
        leader = leader_of(stage)
        transitions, files = count(leader, stage.now, root)
        sys.stdout.write(f"{name:16} {transitions:6} transitions between {files} files\n")


def leader_of(stage: Any) -> Any:
    """The leader, by its name of today or of earlier commits."""
    return getattr(stage, "reconciler", None) or getattr(stage, "keeper", None) or stage.lead()


def reconcile(stage: Any, seconds: float) -> None:
    """Lets time pass and runs one reconciliation."""
    stage.pass_time(seconds)
    method(leader_of(stage))(stage.now)


def method(leader: Any) -> Any:
    """The method that reconciles, by its name of today or of earlier commits."""
    return getattr(leader, "reconcile", None) or leader.round


def count(leader: Any, now: int, root: Path) -> tuple[int, int]:
    """Transitions between files in one reconciliation, and the number of files that took part."""
    prefix = str(root / "timekeeper") + "/"
    visits: list[str] = []

    def hook(frame: FrameType, event: str, _argument: object) -> None:
        if event == "return" and frame.f_back is not None:
            frame = frame.f_back
        elif event != "call":
            return
        file = frame.f_code.co_filename
        if file.startswith(prefix) and (not visits or visits[-1] != file):
            visits.append(file)

    run = method(leader)
    sys.setprofile(hook)
    try:
        run(now)
    finally:
        sys.setprofile(None)
    return max(0, len(visits) - 1), len(set(visits))


if __name__ == "__main__":
    main()
