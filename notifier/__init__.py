"""Notification delivery for teams that run Celery, Redis and PostgreSQL.

from notifier import notify
notify("user-42", {"text": "hello"})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from notifier.aio import anotify, anotify_many
    from notifier.errors import NotAccepted
    from notifier.limit import Limit
    from notifier.limits.limiter import Limiter, Verdict
    from notifier.limits.local import LocalBucket
    from notifier.notification import Notification
    from notifier.producer import notify, notify_many
    from notifier.settings import Settings
    from notifier.transaction import send_in, send_many_in

__all__ = [
    "Limit",
    "Limiter",
    "LocalBucket",
    "NotAccepted",
    "Notification",
    "Settings",
    "Verdict",
    "anotify",
    "anotify_many",
    "notify",
    "notify_many",
    "send_in",
    "send_many_in",
]

_HOME = {
    "Limit": "notifier.limit",
    "Limiter": "notifier.limits.limiter",
    "LocalBucket": "notifier.limits.local",
    "NotAccepted": "notifier.errors",
    "Notification": "notifier.notification",
    "Settings": "notifier.settings",
    "Verdict": "notifier.limits.limiter",
    "anotify": "notifier.aio",
    "anotify_many": "notifier.aio",
    "notify": "notifier.producer",
    "notify_many": "notifier.producer",
    "send_in": "notifier.transaction",
    "send_many_in": "notifier.transaction",
}


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: importing this costs next to nothing, where nothing of it is used."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_HOME[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
