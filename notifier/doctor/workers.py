"""Whether beat and workers do their part: the replay's last run, and a canary through every queue."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

from amqp.exceptions import AMQPError
from kombu.exceptions import KombuError, OperationalError
from redis import Redis
from redis.exceptions import RedisError

from notifier import canary, producer
from notifier.doctor.finding import Finding, ok, problem, warning, words
from notifier.doctor.lines import Glance, Line, line_of
from notifier.errors import StateUnavailable
from notifier.redis.keys import REPLAY_SENDER, REPLAYED
from notifier.redis.state import call, connect_state
from notifier.settings import Settings
from notifier.wire import CONTROL, PROBE, QUEUES

TIMEOUT_S = 1.0
WAIT_S = 10.0  # for a canary
LOOK_EVERY_S = 0.05
LATE_S, ABSENT_S = 3.0, 20.0  # it runs every second with beat, every ten or so where a worker stands in
WHY = {CONTROL: "nothing is replayed or swept: what waits goes on waiting"}


def replay(settings: Settings) -> Iterator[Finding]:
    """When the replay last ran, and on whose behalf."""
    why = "what waits in Redis and PostgreSQL goes out with the replay, and what a broker lost is found by the sweep"
    with closing(connect_state(settings.redis_url, TIMEOUT_S)) as client:
        try:
            ran_us, stand_in, (seconds, _) = call(lambda: _asked(client))
        except StateUnavailable:
            yield _not_asked("replay.alive")
            return
    if ran_us is None or (ago_s := max(0.0, seconds - int(ran_us) / 1e6)) > ABSENT_S:
        since = "for an hour or longer" if ran_us is None else f"for {ago_s:,.0f} s"
        mend = "start beat (notifier beat) and a worker that takes notifier.control"
        yield problem("replay.alive", f"no replay has run {since}", why, mend)
    elif stand_in is not None:
        what = f"beat is absent: a worker replays every ten seconds in its place (last {ago_s:.1f} s ago)"
        yield warning("replay.alive", what, "what waits goes out in lumps, and late", "start beat: notifier beat")
    elif ago_s > LATE_S:
        mend = "are beat and enough workers running? `notifier status` shows how old the queues are"
        yield warning("replay.alive", f"the last replay ran {ago_s:.0f} s ago; it should every second", why, mend)
    else:
        yield ok("replay.alive", f"the last replay ran {ago_s:.1f} s ago")


def _asked(client: Redis) -> Any:
    pipe = client.pipeline(transaction=False)
    pipe.get(REPLAYED)
    pipe.get(REPLAY_SENDER)
    pipe.time()
    return pipe.execute()


def _not_asked(check: str) -> Finding:
    return warning(check, "not looked at: state Redis does not answer", "see state.reachable", "see state.reachable")


class Canary:
    """Sends one through each queue and waits for the answers. `waiting` says meanwhile what has not come."""

    def __init__(self, settings: Settings, app: Any, wait_s: float = WAIT_S) -> None:
        self._settings, self._app, self._wait_s = settings, app, wait_s
        self._token = secrets.token_hex(16)
        self.waiting: dict[str, int] = {}  # queue -> messages that were there before it

    def check(self) -> Iterator[Finding]:
        """One finding a queue."""
        with closing(connect_state(self._settings.redis_url, TIMEOUT_S)) as client:
            try:
                canary.answers(client, self._token)
            except StateUnavailable:
                yield _not_asked("workers.consume")
                return
            try:
                with closing(line_of(self._app)) as line:
                    yield from self._send_and_wait(client, line)
            except (AMQPError, KombuError, OperationalError, RedisError, OSError) as error:
                why, mend = "without a broker workers get nothing to do", "see broker.reachable"
                yield warning("workers.consume", f"not looked at: {words(error)}", why, mend)
            finally:
                with suppress(StateUnavailable):
                    canary.forget(client, self._token)

    def _send_and_wait(self, client: Redis, line: Line) -> Iterator[Finding]:
        before = {queue: line.glance(queue) for queue in QUEUES}
        sent_s = time.monotonic()
        answered_s: dict[str, float] = {}
        who: dict[str, str] = {}
        try:
            for queue in QUEUES:
                if before[queue].length is not None:  # publishing would declare it
                    arguments = {"queue": queue, "canary": self._token}
                    producer.publish_task(self._app, PROBE, arguments, queue, expires_s=self._wait_s + 5)
                    line.hold(queue, self._token)
                    self.waiting[queue] = before[queue].length or 0
            while self.waiting and time.monotonic() - sent_s < self._wait_s:
                time.sleep(LOOK_EVERY_S)
                who = canary.answers(client, self._token)
                for queue in who.keys() & self.waiting.keys():
                    answered_s[queue] = time.monotonic() - sent_s
                    del self.waiting[queue]
            for queue in QUEUES:
                if queue in answered_s:
                    took = f"{answered_s[queue] * 1000:,.0f} ms"
                    yield ok(f"workers.{queue}", f"{who[queue]} answered after {took}")
                else:
                    yield self._unanswered(queue, before[queue], line.glance(queue))
        finally:
            for queue in list(self.waiting):
                line.take_back(queue)

    def _unanswered(self, queue: str, before: Glance, now: Glance) -> Finding:
        check, ahead = f"workers.{queue}", before.length or 0
        why = WHY.get(queue, "what is sent with this priority is not delivered")
        if before.length is None:
            return problem(check, "there is no such queue", why, "start a worker, which declares it: notifier worker")
        moves = bool(now.consumers) if now.consumers is not None else now.next_up != before.next_up
        if ahead and moves:
            return warning(
                check,
                f"{ahead:,} messages were ahead of a canary, which is not through after {self._wait_s:g} s; "
                "workers do take from this queue",
                "what is sent now is late by as much",
                "more workers, or wait: `notifier status` shows the queue's age",
            )
        length = f"; {ahead:,} messages wait" if ahead else ""
        return problem(
            check,
            f"no worker answered within {self._wait_s:g} s{length}",
            why,
            f"start a worker (notifier worker); one that runs: does it take {queue} (-Q), this broker and this state "
            "Redis, is it as new as this command, and not busy with tasks of minutes?",
        )


def progress(watched: Canary, say: Callable[[str], None], every_s: float = 2.0) -> Callable[[], None]:
    """A function to be called often while a canary is awaited: says now and then what has not come."""
    began_s = said_s = time.monotonic()

    def tick() -> None:
        nonlocal said_s
        now_s = time.monotonic()
        if now_s - said_s >= every_s and (waiting := dict(watched.waiting)):
            said_s = now_s
            queues = ", ".join(f"{queue} ({ahead:,} ahead)" if ahead else queue for queue, ahead in waiting.items())
            say(f"waiting for workers, {now_s - began_s:.0f} of at most {WAIT_S:.0f} s: {queues}")

    return tick
