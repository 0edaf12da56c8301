"""Which Celery app a call belongs to."""

from __future__ import annotations

from celery import Celery, current_app
from celery.local import Proxy


def home() -> Celery:
    """The process's own app where this thread has one, else ours.

    A thread that no app was made current in gets an unconfigured default from Celery, whose broker is nobody's.
    """
    from tasks.app import app

    current = current_app._get_current_object()
    made_by_celery = current.main == "default" and not current.set_as_current and not current.conf.broker_url
    return app if made_by_celery else current


def in_home_app(name: str) -> Proxy:
    """A task by name, looked up at each use in the app the caller lives in."""
    return Proxy(lambda: home().tasks[name])
