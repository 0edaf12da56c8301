"""The Celery app for those who bring none of their own."""

from __future__ import annotations

from celery import Celery

from notifier.redis.broker import tls
from notifier.settings import Settings
from tasks import broker, hooks
from tasks.schedule import SCHEDULE


def create_app(settings: Settings) -> Celery:
    """An app on the settings' broker. It is not made the current app: the process may have its own."""
    made = Celery("notifier", set_as_current=False, include=["tasks"])
    made.conf.update(
        broker_url=settings.broker_url,
        broker_transport_options=broker.transport_options(settings.broker_url),
        broker_use_ssl=tls(settings.broker_url),
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=broker.SOCKET_TIMEOUT_S,
        broker_heartbeat=10,
        task_queues=broker.queues(quorum=broker.is_amqp(settings.broker_url)),
        task_default_queue="notifier.normal",
        task_serializer="json",
        result_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        worker_redirect_stdouts=False,
        beat_schedule=SCHEDULE,
        beat_scheduler="celery.beat:Scheduler",  # keeps no state file: the schedule is all it needs
        beat_max_loop_interval=1,
    )
    return made


hooks.connect()
app = create_app(Settings())
