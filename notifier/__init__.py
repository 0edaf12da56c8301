"""Notification delivery for teams that run Celery, Redis and PostgreSQL.

from notifier import notify
notify("user-42", {"text": "hello"})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from notifier.errors import NotAccepted
from notifier.limit import Limit
from notifier.notification import Notification
from notifier.settings import Settings

if TYPE_CHECKING:
    from notifier.limits.limiter import Limiter, Verdict
    from notifier.limits.local import LocalBucket
    from notifier.producer import notify, notify_many

__all__ = [
    "Limit",
    "Limiter",
    "LocalBucket",
    "NotAccepted",
    "Notification",
    "Settings",
    "Verdict",
    "notify",
    "notify_many",
]

_LAZY = {
    "Limiter": "notifier.limits.limiter",
    "LocalBucket": "notifier.limits.local",
    "Verdict": "notifier.limits.limiter",
    "notify": "notifier.producer",
    "notify_many": "notifier.producer",
}


def __getattr__(name: str) -> Any:
    """Load what needs clients only when it is used."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
