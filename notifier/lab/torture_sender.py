"""A sender of the torture, a process of its own: sends from its seed, and keeps its own list of what was accepted.

    python -m notifier.lab.torture_sender SEED NUMBER SECONDS LIST

LIST gets a line of JSON for each notification, after the call for it has returned. What was not accepted is sent again
with the same id, as NotAccepted says, until it is. Settings come from the environment.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from notifier import producer
from notifier.errors import NotAccepted
from notifier.lab.account import Sent
from notifier.notification import Identity, Notification
from notifier.settings import Settings

if TYPE_CHECKING:
    from celery import Celery

QUIET = tuple(f"quiet-{number:02}" for number in range(1, 21))
NOISY = tuple(f"noisy-{number}" for number in (1, 2))
USERS = (*QUIET, *NOISY)
STEPS_A_S = 6.0
MOST_REFUSED = 2_000
CRITICAL, REPEATED = "critical", "repeated"


class Sender:
    """`app` publishes; `listed` is where the list goes."""

    def __init__(self, app: Celery, seed: int, number: int, listed: IO[str]) -> None:
        self._app, self._listed, self._number = app, listed, number
        self._rng = random.Random(f"{seed}-{number}")  # noqa: S311
        self._count = 0
        self._refused: deque[list[Notification]] = deque()
        self._chosen: deque[Notification] = deque(maxlen=50)

    def run(self, seconds: float) -> None:
        """Send for so long, then until nothing is left that was refused."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._step(noisy=time.monotonic() < until_s - seconds / 4)
            time.sleep(self._rng.expovariate(STEPS_A_S))
        while self._refused:
            self._again()
            time.sleep(0.1)

    def _step(self, noisy: bool) -> None:
        if self._refused:
            self._again()
        if len(self._refused) > MOST_REFUSED:
            return
        kind = self._rng.random()
        if kind < 0.70:
            self._send([self._new(self._rng.choice(QUIET))])
        elif kind < 0.78:  # one payload to many
            self._send_one_to_many(self._rng.sample(QUIET, self._rng.randint(2, 8)))
        elif kind < 0.84:
            self._send([self._new(self._rng.choice(USERS), priority="critical", category=CRITICAL)])
        elif kind < 0.88:
            self._send([self._new(self._rng.choice(USERS), priority="bulk")])
        elif kind < 0.92 and self._chosen:  # sent before: it must not arrive twice
            self._send([self._rng.choice(self._chosen)])
        elif kind < 0.94:  # many different ones in one call
            self._send([self._new(self._rng.choice(QUIET)) for _ in range(self._rng.randint(2, 30))])
        elif kind < 0.97 and noisy:  # a burst over the limit
            user_id = self._rng.choice(NOISY)
            for _ in range(self._rng.randint(4, 24)):
                self._send([self._new(user_id)])

    def _new(self, user_id: str, **options: str) -> Notification:
        self._count += 1
        chosen = self._rng.random() < 0.2
        notification = Notification.create(
            user_id,
            self._payload(),
            notification_id=f"{REPEATED}-{self._number}-{self._count}" if chosen else None,
            **options,  # type: ignore[arg-type]
        )
        if chosen:
            self._chosen.append(notification)
        return notification

    def _payload(self) -> dict[str, object]:
        return {"sender": self._number, "count": self._count, "text": "ünïcode \x00 {}"}

    def _send_one_to_many(self, user_ids: Sequence[str]) -> None:
        self._count += 1
        payload, notification_id = self._payload(), f"many-{self._number}-{self._count}"
        self._send([Notification.create(u, payload, notification_id=notification_id) for u in user_ids])

    def _again(self) -> None:
        self._send(self._refused.popleft())

    def _send(self, notifications: list[Notification]) -> None:
        at_s = time.monotonic()
        refused: set[tuple[str, str]] = set()
        try:
            producer.accept_and_publish(self._app, notifications)
        except NotAccepted as error:
            refused = set(zip(error.recipients, error.notification_ids, strict=True))
            self._refused.append([n for n in notifications if (n.user_id, n.notification_id) in refused])
        for n in notifications:
            if (n.user_id, n.notification_id) not in refused:
                line = [*n.identity, json.loads(n.body), n.priority == "critical", at_s]
                self._listed.write(json.dumps(line) + "\n")
        self._listed.flush()


def read(lists: Sequence[Path]) -> tuple[list[Sent], set[Identity]]:
    """All senders' lists, each identity once; and those that were sent as critical."""
    found: dict[Identity, Sent] = {}
    critical: set[Identity] = set()
    for path in lists:
        for line in path.read_text(encoding="utf-8").splitlines():
            user_id, channel, notification_id, payload, is_critical, at_s = json.loads(line)
            identity = Identity(user_id, channel, notification_id)
            found.setdefault(identity, Sent(identity, payload, at_s))
            if is_critical:
                critical.add(identity)
    return list(found.values()), critical


def main(seed: int, number: int, seconds: float, path: Path) -> None:
    """Send."""
    from celery import Celery

    app = Celery("torture", broker=Settings().broker_url, set_as_current=False)
    with path.open("a", encoding="utf-8") as listed:
        Sender(app, seed, number, listed).run(seconds)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
