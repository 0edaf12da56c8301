"""Processes that we start, watch and end: each in a session of its own, none outliving us."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

_PR_SET_PDEATHSIG = 1
_LOWEST_PORT = 10_000
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None  # bound here: nothing may be looked up after fork


class Account(NamedTuple):
    """The system user a process runs as."""

    uid: int
    gid: int


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str],
    cwd: Path | str = "/",
    stdin: bytes = b"",
    account: Account | None = None,
    death_signal: signal.Signals = signal.SIGTERM,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own (the terminal's Ctrl-C does not reach it), its output appended to `log`.

    On Linux it gets `death_signal` when the thread that started it ends, be it by kill -9: call this from a thread
    that lives as long as the process shall. `stdin` is a short text (below a pipe's 64 KiB): the place for secrets,
    which a command line would show to every user of the machine.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=str(cwd),
            start_new_session=True,
            preexec_fn=_die_with(os.getpid(), death_signal),  # one bound C call: takes no lock
            pass_fds=pass_fds,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(stdin)
        process.stdin.close()
    return process


def _die_with(parent_pid: int, death_signal: signal.Signals) -> Callable[[], None] | None:
    prctl = _prctl
    if prctl is None:
        return None

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent_pid:  # it went between fork and prctl: no signal will come
            os._exit(1)

    return ask


def end(process: subprocess.Popen[bytes], ask: signal.Signals, timeout_s: float) -> int:
    """Ask politely, wait up to `timeout_s`, then kill the whole group. Returns the exit code; fine when it has ended.

    A frozen process is thawed first: it could not hear the question.
    """
    if process.poll() is None:
        signal_tree(process.pid, signal.SIGCONT)
        process.send_signal(ask)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
    _kill_group(process.pid)
    return process.wait()


def _kill_group(pid: int) -> None:
    """What is left of a session's group, the leader or the children of one that has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def signal_tree(pid: int, what: signal.Signals) -> None:
    """Send to a process, then to all its descendants (PostgreSQL's and Celery's children lead groups of their own)."""
    try:
        root = psutil.Process(pid)
        children = root.children(recursive=True)
        root.send_signal(what)
    except psutil.NoSuchProcess:
        return
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.send_signal(what)


def wait_until(ready: Callable[[], bool], *, timeout_s: float, interval_s: float = 0.01) -> bool:
    """Poll until `ready()`; False when the time is up."""
    end_s = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > end_s:
            return False
        time.sleep(interval_s)
    return True


def free_port() -> int:
    """A free TCP port of 127.0.0.1, outside the range of outgoing connections.

    Inside that range a client that keeps connecting to a server that is down ends up connected to itself, and holds
    the port for good.
    """
    highest = _first_ephemeral_port() - 1
    for _ in range(1_000):
        port = random.randint(_LOWEST_PORT, highest)  # noqa: S311
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise OSError("no free TCP port was found on 127.0.0.1")


def _first_ephemeral_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 32_768
    return first if first > _LOWEST_PORT + 1_000 else 32_768


def tail(log: Path, lines: int = 8) -> str:
    """The last lines of a log file, for an error's text."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
