"""The sweep: finds what a broker has lost, by probes, and publishes it again.

One probe message at a time travels through each queue. When the probe sent at p has run, everything that was last
published to that queue before p has been popped too; what is neither claimed nor settled five seconds later is lost.
So a backlog is never mistaken for a loss, an idle queue's loss is found in seconds, and the queue's age comes free.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from notifier import metrics
from notifier.ledger import Ledger
from notifier.notification import Identity, Priority
from notifier.redis.keys import DATABASE, PREFIX
from notifier.redis.state import call
from notifier.wire import QUEUE_OF, Message

SETTLE_US = 5_000_000  # what was popped before the probe gets this long to be settled
RESEND_MS = 10_000  # a probe that has not come back by then may be lost itself
KEEP_S = 3_600
MOST = 2_000  # republished in one run

log = logging.getLogger(__name__)


class Rows(Protocol):
    """What the sweep asks of the table."""

    def missing(self, identities: Sequence[Identity]) -> list[Identity]: ...
    def fingerprint(self) -> str: ...


class Sweep:
    """Any number may run at once."""

    def __init__(self, ledger: Ledger, rows: Rows) -> None:
        self._ledger, self._rows = ledger, rows

    def run(
        self,
        publish: Callable[[list[tuple[Priority, Message]]], None],
        send_probe: Callable[[Priority, int], None],
    ) -> int:
        """Send probes, publish again what is lost; how many. Raises StateUnavailable and the broker's errors."""
        client = self._ledger.client
        now_us = self._ledger.now_us()
        lost: list[tuple[Priority, Message]] = []
        for queue in QUEUE_OF:
            passed = _key("passed", queue)
            ripe = call(lambda k=passed: client.zrangebyscore(k, "-inf", now_us - SETTLE_US))  # type: ignore[misc]
            if ripe:
                before_us = max(int(cast(bytes, member)) for member in ripe)
                found = self._ledger.overdue(queue, before_us, MOST)
                publish([(queue, message) for message in found])
                lost += [(queue, message) for message in found]
                if len(found) < MOST:
                    call(lambda k=passed, r=ripe: client.zrem(k, *r))  # type: ignore[misc]
            if call(lambda q=queue: client.set(_key("probe", q), now_us, px=RESEND_MS, nx=True)):  # type: ignore[misc]
                send_probe(queue, now_us)
        if lost:
            metrics.REPUBLISHED.inc(len(lost))
            metrics.degraded("broker_lost", f"{len(lost)} messages published again")
        return len(lost)

    def probe_ran(self, queue: Priority, published_us: int) -> float:
        """Note that the probe came through. Returns the queue's age in seconds."""
        client, passed = self._ledger.client, _key("passed", queue)
        now_us = self._ledger.now_us()

        def note() -> None:
            pipe = client.pipeline(transaction=False)
            pipe.zadd(passed, {str(published_us): now_us})
            pipe.expire(passed, KEEP_S)
            pipe.set(_key("age", queue), now_us - published_us, ex=KEEP_S)
            pipe.delete(_key("probe", queue))
            pipe.execute()

        call(note)
        return max(0.0, (now_us - published_us) / 1e6)

    def queue_ages_s(self) -> dict[Priority, float | None]:
        """How long the last probe took through each queue; None if none has run for an hour."""
        ages = call(lambda: self._ledger.client.mget([_key("age", queue) for queue in QUEUE_OF]))
        return {queue: None if age is None else int(age) / 1e6 for queue, age in zip(QUEUE_OF, ages, strict=True)}

    def reconcile(self) -> int:
        """After a restart of state Redis: entries that a row should hold, but none does, had ended in the lost tail.

        Does nothing while state Redis is the one it was. Refuses, loudly, where the database is not the one it was:
        against an empty or wrong one everything would be dropped. Returns how many were booked as dropped.
        """
        client = self._ledger.client
        server = str(call(lambda: client.info("server"))["run_id"])
        known = call(lambda: client.get(f"{PREFIX}server"))
        if known is not None and _text(known) == server:
            return 0
        fingerprint = self._rows.fingerprint()
        database = call(lambda: client.get(DATABASE))
        if database is not None and _text(database) != fingerprint:
            metrics.degraded(
                "database_changed",
                f"state Redis was restarted and the database is another one; if that is meant, delete {DATABASE}",
            )
            return 0
        dropped = 0
        for identities in self._ledger.held():
            missing = self._rows.missing(identities)
            dropped += sum(self._ledger.drop(missing, "reconciled"))
        call(lambda: client.set(DATABASE, fingerprint))
        call(lambda: client.set(f"{PREFIX}server", server))
        if dropped:
            log.warning("reconciled: %d notifications had ended in what state Redis lost", dropped)
        return dropped


def _key(kind: str, queue: Priority) -> str:
    return f"{PREFIX}{kind}:{queue}"


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
