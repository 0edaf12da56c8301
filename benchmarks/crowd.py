"""Users with open sockets, and senders at a steady rate: from `delay()` to the socket."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.stage import ROOT, Stage

Heard = tuple[str, float, float]  # user, sent_s, received_s
Send = Callable[[str, dict[str, Any]], object]
ARRIVE_S = 30.0
SILENT_S = 3.0
SWAPPED = 0.01  # at most so many of a peer's frames, see heard


class Crowd:
    """`ours`, `push` and `insert` send one notification to one of `users`, each in its own way."""

    def __init__(self, stage: Stage, users: Sequence[str], process: subprocess.Popen[str]) -> None:
        self._stage, self.users, self._process = stage, list(users), process
        self._stream_ids = dict.fromkeys(self.users, "0-0")
        self._numbers = itertools.count(1)
        self._turn = itertools.cycle(self.users)

    # ---- ways to send

    def ours(self, user_id: str, payload: dict[str, Any]) -> None:
        """send_notification.delay"""
        self._stage.app.tasks["notifier.send_notification"].delay(user_id, payload)

    def push(self, user_id: str, payload: dict[str, Any]) -> None:
        """An empty task that only PUBLISHes."""
        self._peer("benchmarks.push", user_id, payload)

    def insert(self, user_id: str, payload: dict[str, Any]) -> None:
        """A task with one INSERT, then the push."""
        self._peer("benchmarks.insert_and_push", user_id, payload)

    def _peer(self, name: str, user_id: str, payload: dict[str, Any]) -> None:
        """Pushes as the gateway knows them, each naming the one before, so that it never has to look anything up."""
        previous, number = self._stream_ids[user_id], next(self._numbers)
        stream_id = self._stream_ids[user_id] = f"{number}-1"
        frame = json.dumps({"id": stream_id, "notification_id": str(number), "seq": number, "category": "like",
                            "accepted_at": 0.0, "granted_at": 0.0, "payload": payload})  # fmt: skip
        arguments = (user_id, payload, stream_id, previous, frame)
        self._stage.app.tasks[name].apply_async(arguments, queue="notifier.normal")

    # ---- sending and hearing

    def steadily(self, send: Any, rate: float, seconds: float, users: Iterator[Any] | None = None) -> int:
        """Call `send(user, payload)` `rate` times a second, evenly; how often. A late one goes at once."""
        begun_s, sent = time.monotonic(), 0
        turn = users or self._turn
        while (now_s := time.monotonic()) < begun_s + seconds:
            due_s = begun_s + sent / rate
            if now_s < due_s:
                time.sleep(due_s - now_s)
            send(next(turn), {"sent_s": time.monotonic()})
            sent += 1
        return sent

    def heard(self, count: int, timeout_s: float = ARRIVE_S, *, peer: bool = False) -> list[Heard]:
        """Wait for that many frames. Raises TimeoutError.

        `peer`: nothing orders what a peer pushes, and of two that its workers swap the gateway drops the later one as a
        repeat. So a few may be missing, once nothing has come for some seconds.
        """
        found: list[Heard] = []
        last_s = time.monotonic()
        until_s = last_s + timeout_s
        while True:
            now_s = time.monotonic()
            if more := self._ask():
                found, last_s = found + more, now_s
            if len(found) >= count or (peer and now_s > last_s + SILENT_S and len(found) >= (1 - SWAPPED) * count):
                return found
            if now_s > until_s:
                raise TimeoutError(f"{len(found)} of {count} frames came within {timeout_s:g} s")
            time.sleep(0.05)

    def latencies_ms(self, send: Send, rate: float, seconds: float) -> list[float]:
        """From the call to the socket, of all sent at that rate."""
        return in_ms(self.heard(self.steadily(send, rate, seconds)))

    def _ask(self) -> list[Heard]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("more\n")
        self._process.stdin.flush()
        return [(user, sent_s, received_s) for user, sent_s, received_s in json.loads(self._process.stdout.readline())]

    def capacity(self, send: Send, count: int) -> float:
        """Notifications a second, sender, workers, gateway and clients all on this machine: sent as fast as it goes."""
        begun_s = time.monotonic()
        for user in itertools.islice(self._turn, count):
            send(user, {"sent_s": time.monotonic()})
        return count / (max(received_s for _, _, received_s in self.heard(count)) - begun_s)


def in_ms(heard: Sequence[Heard]) -> list[float]:
    """Latencies in milliseconds."""
    return [1_000 * (received_s - sent_s) for _, sent_s, received_s in heard]


@contextmanager
def crowd(stage: Stage, size: int, name: str = "user") -> Iterator[Crowd]:
    """`size` users with a socket each, in a process of their own."""
    users = [f"{name}-{number}" for number in range(size)]
    assert stage.settings.secret
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.listen"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdin
    assert process.stdout
    try:
        told = {"url": stage.stack.gateway_url, "secret": stage.settings.secret.get_secret_value(), "users": users}
        process.stdin.write(json.dumps(told) + "\n")
        process.stdin.flush()
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the sockets could not connect")
        yield Crowd(stage, users, process)
    finally:
        process.stdin.close()
        process.wait(30)
