"""Notifier's Celery tasks, and an app for them: `celery -A tasks worker`; or `include=["tasks"]` in your own app."""

from tasks.app import app
from tasks.beat import probe, replay_dead_letters, sweep_unsettled
from tasks.notifications import send_notification, send_notifications

__all__ = ["app", "probe", "replay_dead_letters", "send_notification", "send_notifications", "sweep_unsettled"]
