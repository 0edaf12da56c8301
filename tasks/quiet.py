"""A calm log without payloads: Celery and kombu print the whole body of a message they cannot use."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from itertools import pairwise

from celery import current_task
from celery.worker.consumer import consumer
from kombu.transport.virtual.base import W_NO_CONSUMERS

from notifier import logs
from notifier.wire import PROBE, REPLAY_DEAD_LETTERS, SEND_NOTIFICATION, SEND_NOTIFICATIONS, SWEEP_UNSETTLED

# The texts that show bodies or headers, by their beginnings and loggers.
SHOWS_BODIES = {
    "celery.worker.consumer.consumer": (
        consumer.UNKNOWN_FORMAT,
        consumer.UNKNOWN_TASK_ERROR,
        consumer.INVALID_TASK_ERROR,
        consumer.MESSAGE_DECODE_ERROR,
    ),
    "celery.pool": ("TaskPool: Apply",),
    "kombu.transport.redis": ("Could not restore message",),
    "kombu.transport.virtual.base": ("Could not restore message",),
}
# Several a second, and nothing in them: sent, received, succeeded; expired, where a worker was busy.
ROUTINE = frozenset((PROBE, REPLAY_DEAD_LETTERS, SWEEP_UNSETTLED))
SAYS_ROUTINE = ("celery.worker.strategy", "celery.worker.request", "celery.app.trace", "celery.beat")
NOTIFICATIONS = frozenset((SEND_NOTIFICATION, SEND_NOTIFICATIONS))
_NAME = re.compile(r"[\w.:/+-]{0,200}", re.ASCII)
_HIDDEN = "[not logged: it may be a notification]"


class HideBodies(logging.Filter):
    """Replaces what a log record of these texts would show, but names, numbers and errors. Drops no record."""

    def __init__(self, beginnings: tuple[str, ...]) -> None:
        super().__init__()
        self._beginnings = beginnings

    def filter(self, record: logging.LogRecord) -> bool:
        """Always true."""
        if isinstance(record.args, tuple) and str(record.msg).startswith(self._beginnings):
            record.args = tuple(_shown(value) for value in record.args)
        return True


class HushRoutine(logging.Filter):
    """Turns INFO about beat's tasks into DEBUG."""

    def filter(self, record: logging.LogRecord) -> bool:
        """False where DEBUG is not logged."""
        said = record.args.values() if isinstance(record.args, dict) else record.args or ()
        if record.levelno != logging.INFO or not any(isinstance(value, str) and value in ROUTINE for value in said):
            return True
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


class CalmGoodbye(logging.Filter):
    """What the broker handed out while the worker was ending goes back: nothing to warn about."""

    def filter(self, record: logging.LogRecord) -> bool:
        """False where INFO is not logged."""
        if record.msg != W_NO_CONSUMERS:
            return True
        record.msg = "a message that came while this worker was ending went back to %s, for another one"
        record.levelno, record.levelname = logging.INFO, "INFO"
        return logging.getLogger(record.name).isEnabledFor(logging.INFO)


class Identify(logging.Filter):
    """Adds to what Celery says of a message of ours whom it is about, as far as that is known. Drops no record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always true."""
        name, task_id = _task_of(record.args)
        if name not in NOTIFICATIONS:
            return True
        record.task, record.task_id, record.notification_id = name, task_id, task_id
        about = current_task.request.get("about") if current_task and current_task.request.id == task_id else None
        if about:
            tail = logs.tail_of(about)
            record.notification_id = None  # of several, the id of the message is nobody's
            vars(record).update(about, tail=tail)
            record.msg = f"{record.msg}{tail.replace('%', '%%')}"
        return True


def _task_of(said: object) -> tuple[object, object]:
    """Name and id of the task that a record is about: they stand in a mapping, or side by side."""
    if isinstance(said, Mapping):
        return said.get("name"), said.get("id")
    values = said if isinstance(said, tuple) else ()
    return next((pair for pair in pairwise(values) if pair[0] in NOTIFICATIONS), (None, None))


def install() -> None:
    """On the loggers concerned; once each."""
    wanted: list[tuple[str, logging.Filter]] = [(name, HideBodies(texts)) for name, texts in SHOWS_BODIES.items()]
    wanted.append(("kombu.transport.virtual.base", CalmGoodbye()))
    wanted += [(name, made()) for name in SAYS_ROUTINE for made in (HushRoutine, Identify)]
    for name, made in wanted:
        logger = logging.getLogger(name)
        if not any(type(there) is type(made) for there in logger.filters):
            logger.addFilter(made)


def _shown(value: object) -> object:
    if value is None or isinstance(value, (int, float, BaseException)):
        return value
    return value if isinstance(value, str) and _NAME.fullmatch(value) else _HIDDEN
