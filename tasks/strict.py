"""A message whose envelope is broken is refused. Celery's worker would end by it, and so would the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.exceptions import InvalidTaskError
from celery.worker.request import Request
from celery.worker.strategy import default

DEEPEST = 400  # arguments are pickled for the pool's children, and Python's limit is a thousand calls


class StrictRequest(Request):
    """Raises InvalidTaskError, upon which Celery logs and rejects the message, where it cannot be made of one."""

    def __init__(self, message: Any, *args: Any, **kwargs: Any) -> None:
        try:
            super().__init__(message, *args, **kwargs)
            hard, soft = self.time_limits
            sound = isinstance(self.id, str) and all(isinstance(limit, int | float | None) for limit in (hard, soft))
        except InvalidTaskError:
            raise
        except Exception as error:
            raise InvalidTaskError(f"its envelope is broken: {type(error).__name__}") from None
        if not sound or _nested(self._args) or _nested(self._kwargs):
            raise InvalidTaskError("its envelope is broken")


def strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:
    """Celery's own, for what is a list (or, in Celery's first protocol, an object)."""
    handle = default(task, app, consumer, **options)

    def on_message(message: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(message.payload, list | dict):
            raise InvalidTaskError("its envelope is broken: it is neither a list nor an object")
        return handle(message, *args, **kwargs)

    return on_message


def _nested(value: Any) -> bool:
    """Deeper than DEEPEST?"""
    level, depth = [value], 0
    while level and depth <= DEEPEST:
        found = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, list | dict)]
        level, depth = [child for children in found for child in children], depth + 1
    return bool(level)
