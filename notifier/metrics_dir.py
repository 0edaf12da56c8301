"""PROMETHEUS_MULTIPROC_DIR: where the processes of a host put what they count, so that one of them can tell it all.

prometheus_client keeps a file for each process and kind of metric there. What a dead process counted still counts, but
its files would pile up with every child that a pool replaces: they are added up in one. What it only measured (open
loans, connections) has gone with it.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
PATIENCE_S, LOOK_EVERY_S = 2.0, 0.01
_DEAD = "0"  # no process has this pid
_here = threading.Lock()  # lockf knows processes, not threads


def directory() -> Path | None:
    """The directory, or None where each process is on its own."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


def prepare() -> None:
    """Make it before the first metric is: prometheus_client fails where it is missing."""
    if (place := directory()) is not None:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)


def forget_process(pid: int) -> None:
    """What a process measured goes when it ends; also when it is still writing."""
    if directory() is not None:
        with suppress(OSError):  # another one tidies up too
            mark_process_dead(pid)  # type: ignore[no-untyped-call]


def collect(place: Path | None = None) -> list[Metric]:
    """What the processes of this host have counted, and what the living measure; without a directory this one alone.

    Raises OSError where it cannot be read; a TimeoutError where another process that reads it does not end.
    """
    place = place or directory()
    if place is None:
        return list(REGISTRY.collect())
    with _alone(place):
        _tidy(place)
        files = [str(file) for file in place.glob("*.db") if file.stat().st_size]  # empty: it is being made
        return list(MultiProcessCollector.merge(files))  # type: ignore[no-untyped-call]


def grants(place: Path | None = None) -> dict[str, int]:
    """Grants so far by source, as `collect` finds them."""
    found = {"local": 0, "shared": 0, "grace": 0}
    for metric in collect(place):
        if metric.name == "notifier_grants":
            found |= {s.labels["source"]: int(s.value) for s in metric.samples if s.name.endswith("_total")}
    return found


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Nobody reads while files are added up. lockf: a flock would pass on to whoever is forked meanwhile, and stay.

    Waits for a moment only: one that is frozen in there must not freeze every scrape of its host.
    """
    until_s = time.monotonic() + PATIENCE_S
    if not _here.acquire(timeout=PATIENCE_S):
        raise TimeoutError
    try:
        with (place / "lock").open("w") as lock:
            while not _locked(lock):
                if time.monotonic() > until_s:
                    raise TimeoutError
                time.sleep(LOOK_EVERY_S)
            yield
    finally:
        _here.release()


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _tidy(place: Path) -> None:
    for file in place.glob("*.db"):
        kind, _, pid = file.stem.rpartition("_")
        if not pid.isdigit() or pid == _DEAD or _runs(int(pid)):
            continue
        if kind.startswith("gauge_live"):
            file.unlink(missing_ok=True)
        elif kind in ("counter", "histogram", "summary"):
            _add_up(file, place / f"{kind}_{_DEAD}.db")


def _add_up(file: Path, total: Path) -> None:
    values: list[tuple[str, float, float, int]] = []
    with suppress(struct.error, RuntimeError):  # it was killed while it made the file
        values = list(MmapedDict.read_all_values_from_file(str(file)))  # type: ignore[no-untyped-call]
    sums = MmapedDict(str(total))  # type: ignore[no-untyped-call]
    for key, value, at, _ in values:
        sums.write_value(key, sums.read_value(key)[0] + value, at)  # type: ignore[no-untyped-call]
    sums.close()  # type: ignore[no-untyped-call]
    file.unlink()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
