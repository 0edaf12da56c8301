"""For tests of the tasks: a user's feed, and a task run as a worker runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from celery import Celery

from notifier import runtime
from notifier.redis.keys import user_key
from tasks.home import home

Use = Callable[..., Celery]


def payloads(user: str) -> list[Any]:
    """What is in a user's feed, oldest first."""
    entries: Any = runtime.get().client.xrange(user_key("feed", user, "websocket"))
    return [json.loads(b"{" + fields[b"f"])["payload"] for _, fields in entries]


def as_worker(task: Any, *args: Any, redelivered: bool = False, task_id: str = "t1", **kwargs: Any) -> None:
    """Run a task's function as a worker that got this message."""
    real = home().tasks[task.name]
    real.push_request(id=task_id, called_directly=False, delivery_info={"redelivered": redelivered})
    try:
        real.run(*args, **kwargs)
    finally:
        real.pop_request()
