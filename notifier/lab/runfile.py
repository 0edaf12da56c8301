"""`.notifier/run.env`: tells the commands of this directory where a running `notifier up` is. And the lock of `up`."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from notifier.errors import NotifierError
from notifier.settings import RUN_ENV


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Hold this directory's lock, with no run.env of a killed run.

    Raises NotifierError where another one holds it, or where this user may not write.
    """
    try:
        RUN_ENV.parent.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(RUN_ENV.with_name("up.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise NotifierError(
            f"{error.filename} cannot be used ({error.strerror}): run it in another directory"
        ) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _already_up(os.read(handle, 20).decode(errors="replace").strip()) from None
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        RUN_ENV.unlink(missing_ok=True)
        try:
            yield
        finally:
            RUN_ENV.unlink(missing_ok=True)
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _already_up(pid: str) -> NotifierError:
    who, way_out = (f"process {pid}", f", or: kill {pid}") if pid.isdigit() else ("another process", "")
    return NotifierError(f"notifier up already runs in {Path.cwd()} ({who}); stop it with Ctrl-C there{way_out}")


def write(settings: Mapping[str, str]) -> None:
    """Put the file in place at once, readable by its owner only: it holds passwords."""
    draft = RUN_ENV.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write("# Written by `notifier up`, removed when it ends.\n")
        for name, value in settings.items():
            # A $ would be taken for a variable; all values are URLs, or have none.
            quoted = value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "%24")
            file.write(f"{name}='{quoted}'\n")
    draft.rename(RUN_ENV)
