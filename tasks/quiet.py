"""Keeps payloads out of the log: Celery and kombu print the whole body of a message they cannot use."""

from __future__ import annotations

import logging
import re

from celery.worker.consumer import consumer

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


def install() -> None:
    """On the loggers that print bodies; once each."""
    for name, beginnings in SHOWS_BODIES.items():
        logger = logging.getLogger(name)
        if not any(isinstance(there, HideBodies) for there in logger.filters):
            logger.addFilter(HideBodies(beginnings))


def _shown(value: object) -> object:
    if value is None or isinstance(value, (int, float, BaseException)):
        return value
    return value if isinstance(value, str) and _NAME.fullmatch(value) else _HIDDEN
