"""The thread behind anotify: who waits for it waits for nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from notifier.aio import WAITING, Sender
from notifier.notification import Notification
from notifier.producer import Sending
from tests.support import eventually

PATIENCE_S = 60.0


@pytest.fixture
def silent() -> Iterator[threading.Event]:
    """Until it is set, servers say nothing."""
    event = threading.Event()
    yield event
    event.set()


def accept(notifications: Sequence[Notification]) -> list[Sending]:
    return [Sending(n.notification_id, n.user_id, "queued") for n in notifications]


def test_no_call_waits_behind_what_nobody_waits_for(silent: threading.Event) -> None:
    sender = Sender(accept)
    assert sender.run(silent.wait)
    (sending,) = sender.send([Notification.create(1, "x")]).result(PATIENCE_S)
    assert (sending.status, silent.is_set()) == ("queued", False)


def test_what_nobody_waits_for_does_not_pile_up(silent: threading.Event) -> None:
    sender, done = Sender(accept), threading.Semaphore(0)
    assert all(sender.run(silent.wait) for _ in range(WAITING))
    assert not sender.run(done.release)
    silent.set()
    eventually(lambda: sender.run(done.release), timeout_s=PATIENCE_S)
    assert done.acquire(timeout=PATIENCE_S)
