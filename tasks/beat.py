"""What beat runs every second: replay and sweep; and the probe that the sweep sends through each queue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import shared_task

from notifier import canary as canaries
from notifier import logs, metrics, producer, runtime
from notifier.errors import DatabaseUnavailable, Unavailable, ends_process
from notifier.notification import Priority
from notifier.redis.keys import REPLAYED
from notifier.wire import PROBE, QUEUE_OF, REPLAY_DEAD_LETTERS, SWEEP_UNSETTLED
from tasks.base import StrictTask
from tasks.broker import HARD_LIMIT_S, SOFT_LIMIT_S
from tasks.home import in_home_app

log = logging.getLogger("notifier.tasks")
REPLAYED_TTL_S = 3_600


class ControlTask(StrictTask):
    """Its message is worth nothing: beat sends another. So it is acknowledged at once, and a failure only reported."""

    abstract = True
    typing = False
    serializer = "json"
    acks_late = False
    ignore_result = True
    rate_limit = 0  # none, whatever a team's task_default_rate_limit says
    soft_time_limit = SOFT_LIMIT_S
    time_limit = HARD_LIMIT_S

    def attempt(self, run: Callable[[], Any]) -> None:
        """Run, and make a failure loud without making it a failed task every second."""
        if self.request.called_directly or self.request.is_eager:
            run()
            return
        try:
            run()
        except Unavailable as error:
            metrics.degraded(self.name, error)
        except BaseException as error:
            if ends_process(error):
                raise
            if metrics.degraded(self.name, type(error).__name__):
                log.error("%s failed\n%s", self.name, logs.trace(error))


@shared_task(name=REPLAY_DEAD_LETTERS, base=ControlTask, bind=True)
def _replay_dead_letters(self: ControlTask, **_newer: Any) -> None:
    """Spill what was deferred into PostgreSQL, then deliver the rows that are due. Any number may run at once."""
    self.attempt(_replay)


@shared_task(name=SWEEP_UNSETTLED, base=ControlTask, bind=True)
def _sweep_unsettled(self: ControlTask, **_newer: Any) -> None:
    """Publish again what the broker has lost. Any number may run at once."""
    self.attempt(lambda: _sweep(self._get_app()))


@shared_task(name=PROBE, base=ControlTask, bind=True)
def _probe(self: ControlTask, queue: str = "", published_us: int = 0, canary: str = "", **_newer: Any) -> None:
    """Say that everything published to `queue` before `published_us` (microseconds of state Redis) was handed out.

    As a `canary` (a token) it only says that this worker took it.
    """
    if canary:
        self.attempt(lambda: canaries.answer(runtime.get().client, canary, queue, str(self.request.hostname)))
    else:
        self.attempt(lambda: runtime.get().sweep.probe_ran(Priority(queue), int(published_us)))


def _replay() -> None:
    parts = runtime.get()
    try:
        parts.replay.run()
    except DatabaseUnavailable:  # it ran: beat and this worker are well, and say what is not
        _note(parts)
        raise
    _note(parts)


def _note(parts: runtime.Runtime) -> None:
    parts.client.set(REPLAYED, parts.ledger.now_us(), ex=REPLAYED_TTL_S)


def _sweep(app: Any) -> None:
    sweep = runtime.get().sweep
    sweep.reconcile()
    sweep.run(
        publish=lambda lost: producer.publish(app, lost),
        send_probe=lambda queue, now_us: producer.publish_task(
            app, PROBE, {"queue": str(queue), "published_us": now_us}, QUEUE_OF[queue]
        ),
    )


replay_dead_letters = in_home_app(REPLAY_DEAD_LETTERS)
sweep_unsettled = in_home_app(SWEEP_UNSETTLED)
probe = in_home_app(PROBE)
