"""Celery's calling options in our words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from notifier.errors import InvalidNotification

_CALLBACKS = ("chain", "link", "link_error", "chord")  # chain: what is to come after it
_ROUTING = ("queue", "exchange", "routing_key", "priority", "serializer", "compression")


def translate(
    kwargs: dict[str, Any], task_id: str | None, options: dict[str, Any], *, inherits: bool = False
) -> dict[str, Any]:
    """`kwargs` with eta and countdown as not_before, expires as ttl, task_id as notification_id.

    `inherits`: a number as priority is the broker's, of the task before in a chain, and nobody's choice.
    Raises InvalidNotification for an option that would be lost.
    """
    now = datetime.now(UTC)
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(given.get("priority"), str):
        kwargs.setdefault("priority", given.pop("priority"))
    elif inherits and isinstance(given.get("priority"), int):
        del given["priority"]
    if "countdown" in given:
        kwargs.setdefault("not_before", _later(now, given["countdown"]))
    if "eta" in given:
        kwargs.setdefault("not_before", _aware("eta", given["eta"]))
    if "expires" in given:
        kwargs.setdefault("ttl", _ttl(given["expires"], kwargs.get("not_before"), now))
    if task_id is not None:
        kwargs.setdefault("notification_id", task_id)
    for name in _CALLBACKS:
        if given.get(name):
            hint = "; let it come last" if name in ("chain", "link") else ""
            raise InvalidNotification(name, f"cannot be carried: a notification may outlive its task{hint}")
    for name in _ROUTING:
        if name in given:
            raise InvalidNotification(name, "is not the caller's to choose: the queue follows from the priority")
    return kwargs


def _later(now: datetime, countdown: Any) -> datetime:
    try:
        return now + timedelta(seconds=countdown)
    except (TypeError, ValueError, OverflowError):
        raise InvalidNotification("countdown", "must be a number of seconds, of at most ten years") from None


def _ttl(expires: Any, not_before: Any, now: datetime) -> Any:
    """Celery counts `expires` from the call, we count `ttl` from not_before."""
    seconds = (_aware("expires", expires) - now).total_seconds() if isinstance(expires, datetime) else expires
    if isinstance(not_before, datetime) and isinstance(seconds, (int, float)) and not_before.utcoffset() is not None:
        try:
            seconds -= max(0.0, (not_before - now).total_seconds())
        except OverflowError:  # an int beyond what a float holds
            raise InvalidNotification("expires", "must be a number of seconds, of at most ten years") from None
    return seconds


def _aware(name: str, moment: Any) -> Any:
    if isinstance(moment, datetime) and moment.utcoffset() is None:
        raise InvalidNotification(name, "is naive; add a time zone, e.g. datetime.now(UTC) + timedelta(hours=1)")
    return moment
