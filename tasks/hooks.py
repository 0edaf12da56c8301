"""Where our tasks live in a Celery process, ours or a team's own: signals only, nobody's configuration is changed."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import billiard.pool
from celery import signals
from celery.utils.log import ColorFormatter, get_multiprocessing_logger

from notifier import channels, logs, metrics_dir, runtime, tracing
from notifier import hooks as event_hooks
from notifier.errors import SettingsError
from notifier.redis.scripts import script
from notifier.redis.state import refuse_cluster
from notifier.settings import Settings
from notifier.wire import QUEUES
from tasks import broker, quiet
from tasks.schedule import SCHEDULE

UNSUPPORTED_POOLS = ("gevent", "eventlet")
# A pool child that was sent a message just before TERM waits for its master to read the result, which it never does:
# 30 s by default, longer than most supervisors wait before they kill. What is cut short comes again, and ends once.
LINGER_S = 1
QUIT_EVERY_S = 0.5


def connect() -> None:
    """Idempotent: the same receiver is kept once."""
    signals.celeryd_init.connect(_declare_queues)
    signals.worker_init.connect(_start_as_worker)
    signals.worker_process_shutdown.connect(_close)
    signals.worker_shutdown.connect(_close)
    signals.beat_init.connect(_extend_schedule)
    signals.after_setup_logger.connect(_format_logs)
    signals.after_setup_task_logger.connect(_format_logs)


def _declare_queues(instance: Any = None, **_: Any) -> None:
    """Before the worker chooses its queues: without -Q it takes all it knows, ours among them."""
    from tasks.metrics_server import MetricsServer
    from tasks.watch import ReplayWatch

    queues = instance.app.amqp.queues
    for queue in broker.queues(quorum="amqp" in instance.app.connection_for_read().transport_cls):
        if queue.name not in queues:
            queues.add(queue)
    instance.app.steps["worker"].update({ReplayWatch, MetricsServer})


def _format_logs(logger: Any = None, **_: Any) -> None:
    """Only who asks for JSON gets it, and only on handlers that Celery made just now: others are somebody's own."""
    if Settings().log_format != "json":
        return
    for handler in (*logger.handlers, *get_multiprocessing_logger().handlers):
        if isinstance(handler.formatter, ColorFormatter):
            handler.setFormatter(logs.JsonFormatter())


def _start_as_worker(sender: Any = None, **_: Any) -> None:
    """Nothing of this is for a worker that takes none of our queues."""
    if not set(QUEUES) & set(sender.app.amqp.queues.consume_from):
        return
    pool = f"{getattr(sender.pool_cls, '__module__', '')} {sender.pool_cls}"
    for name in UNSUPPORTED_POOLS:
        if name in pool:
            raise SystemExit(
                f"notifier: the {name} pool is not supported: locks, timeouts and clients are made for threads and "
                f"processes; use --pool prefork, threads or solo, or keep this worker off our queues with -Q"
            )
    try:
        refuse_cluster(Settings().redis_url)
    except SettingsError as error:
        raise SystemExit(f"notifier: {error}") from None
    quiet.install()
    runtime.act_as_worker()
    channels.known()  # read once here rather than in every child
    for name in ("token_bucket", "begin", "deliver", "deny", "book"):
        script(name)
    signals.worker_process_init.connect(_warm_up)
    from tasks.app import app

    if sender.app is app:  # a team's worker ends as the team is used to
        billiard.pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT = LINGER_S * 10
        signals.worker_ready.connect(_quit_between_writes)


def _quit_between_writes(sender: Any = None, **_: Any) -> None:
    """Celery 5.6 ends the pool within its handler of SIGQUIT. In the middle of a write to a child, both wait for ever:
    so the event loop runs the handler, between writes."""
    hub = getattr(sender, "hub", None)
    if hub is None or "prefork" not in type(sender.pool).__module__:
        return
    asked: list[Any] = []
    handler: Any = signal.getsignal(signal.SIGQUIT)
    signal.signal(signal.SIGQUIT, lambda *received: asked.append(received))
    hub.call_repeatedly(QUIT_EVERY_S, lambda: asked and handler(*asked.pop()))


def _warm_up(**_: Any) -> None:
    """A fresh pool child connects before its first message, which else would wait for it. Ends within three seconds."""
    with contextlib.suppress(Exception):  # what is away now is met again, and reported, with the first message
        parts = runtime.get()
        parts.limiter.connect()
        parts.ledger.now_us()
        parts.pipeline  # noqa: B018  made by being asked for
        event_hooks.wanted()


def _close(**_: Any) -> None:
    """Charge what local buckets lent, while there is time. A pool child runs no exit handlers: its spans go here."""
    runtime.close()
    tracing.flush()
    metrics_dir.forget_process(os.getpid())


def _extend_schedule(sender: Any = None, **_: Any) -> None:
    """A team's beat runs our schedule too, but for what the team has scheduled itself."""
    quiet.install()
    scheduler = sender.scheduler
    theirs = {entry.task for entry in scheduler.schedule.values()}
    scheduler.update_from_dict({name: entry for name, entry in SCHEDULE.items() if entry["task"] not in theirs})
