"""Keeps payloads out of the log: Celery and kombu print the whole body of a message they cannot use."""

from __future__ import annotations

import logging

LOGGERS = (
    "celery.worker.consumer.consumer",  # unknown task, unknown format, undecodable, invalid
    "celery.worker.strategy",
    "celery.app.trace",
    "kombu.transport.redis",  # could not restore
    "kombu.transport.virtual.base",
)
_LONGEST = 200
_HIDDEN = "[body not logged: it may be a notification]"


class HideBodies(logging.Filter):
    """Replaces the arguments of a log record in which a message of ours is shown."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Never drops a record."""
        if isinstance(record.args, tuple) and "notifier." in repr(record.args):
            record.args = tuple(_shortened(value) for value in record.args)
        return True


def install() -> None:
    """On the loggers that print bodies; once each."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(there, HideBodies) for there in logger.filters):
            logger.addFilter(HideBodies())


def _shortened(value: object) -> object:
    """Exceptions, names and short texts tell what is wrong; containers and long texts are bodies."""
    if isinstance(value, (int, float, BaseException)) or value is None:
        return value
    text = str(value)
    return text if isinstance(value, str) and len(text) <= _LONGEST and '"' not in text and "{" not in text else _HIDDEN
