"""A worker that sees no replay for ten seconds sends one: beat may be down."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from celery import bootsteps
from redis import Redis
from redis.exceptions import RedisError

from notifier import metrics, producer
from notifier.redis.client import connect
from notifier.redis.keys import REPLAY_SENDER, REPLAYED
from notifier.redis.state import risks
from notifier.settings import Settings
from notifier.wire import CONTROL, REPLAY_DEAD_LETTERS, SWEEP_UNSETTLED

MISSED_S = 10
LOOK_EVERY_S = 2.0
TIMEOUT_S = 1.0


class ReplayWatch(bootsteps.StartStopStep):
    """Runs in the worker's main process, in a thread of its own: a slow server must not hold up the event loop."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, worker: Any) -> None:
        """Called once the pool is up."""
        if CONTROL not in worker.app.amqp.queues.consume_from:
            return
        self._thread = threading.Thread(target=self._run, args=(worker.app,), name="notifier-beat-watch", daemon=True)
        self._thread.start()

    def stop(self, worker: Any) -> None:
        """Called at shutdown."""
        self._stop.set()

    terminate = stop

    def _run(self, app: Any) -> None:
        client = connect(Settings().redis_url, TIMEOUT_S)
        with suppress(RedisError):  # away, or it may not be asked: not what this is about
            for what, problem in risks(client).items():
                metrics.degraded(what, problem)
        wait_s = float(MISSED_S)  # a worker that has just started has not missed anything
        while not self._stop.wait(wait_s):
            wait_s = LOOK_EVERY_S
            try:
                # One worker a period is enough; more would do no harm.
                if _missed(client) and client.set(REPLAY_SENDER, 1, nx=True, ex=MISSED_S):
                    metrics.degraded("beat", f"no replay ran for {MISSED_S} s; this worker sends one")
                    for name in (REPLAY_DEAD_LETTERS, SWEEP_UNSETTLED):
                        producer.publish_task(app, name, {}, CONTROL, expires_s=MISSED_S)
            except Exception as error:  # whichever server it was, it is looked at again in a moment
                metrics.degraded("beat_watch", type(error).__name__)


def _missed(client: Redis) -> bool:
    replayed_us, (seconds, _) = client.get(REPLAYED), client.time()
    return replayed_us is None or seconds - int(replayed_us) / 1e6 > MISSED_S
