"""What wraps every notification task: validated and accepted at the call, never lost in the worker."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from celery import Task
from celery.exceptions import Reject, WorkerShutdown, WorkerTerminate
from celery.result import AsyncResult

from notifier import metrics, producer, runtime
from notifier.errors import InvalidNotification
from notifier.notification import Notification, new_id
from notifier.wire import Message
from tasks import options as celery_options
from tasks.broker import HARD_LIMIT_S, SOFT_LIMIT_S

log = logging.getLogger("notifier.tasks")
REQUEUE_PAUSE_S = 0.5


class NotificationTask(Task):
    """A task whose message is a promise: the rules are attributes, so they hold in any app that includes the task."""

    abstract = True
    typing = False  # the worker takes arguments of older and newer versions
    serializer = "json"
    acks_late = True
    reject_on_worker_lost = True
    acks_on_failure_or_timeout = False
    ignore_result = True
    soft_time_limit = SOFT_LIMIT_S
    time_limit = HARD_LIMIT_S

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Notification]:
        """The notifications that a call asks for. Raises InvalidNotification, or TypeError for wrong arguments."""
        raise NotImplementedError

    def read_message(self, args: Sequence[Any], kwargs: Mapping[str, Any], redelivered: bool) -> list[Message]:
        """What a message holds; one sent by name gets the task's id, which is the same at every redelivery."""
        raise NotImplementedError

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        **options: Any,
    ) -> AsyncResult:
        """Validate, accept, publish. `eta`, `countdown` and `expires` become not_before and ttl.

        The result's id is the notification id. Raises InvalidNotification, TypeError (wrong arguments) or NotAccepted.
        """
        notifications = self.read_call(args or (), celery_options.translate(dict(kwargs or {}), task_id, options))
        producer.check_channels(notifications)
        notification_id = notifications[0].notification_id if notifications else task_id or new_id()
        app = self._get_app()
        if app.conf.task_always_eager:
            return self.apply(kwargs={"notifications": notifications}, task_id=notification_id)
        producer.accept_and_publish(app, notifications)
        return AsyncResult(notification_id, app=app, task_name=self.name)

    def work(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Run what a message, a direct call or eager mode brought."""
        if self.request.called_directly or self.request.is_eager:
            notifications = kwargs.get("notifications") or self.read_call(args, kwargs)
            producer.check_channels(notifications)
            runtime.get().pipeline.handle([Message(notification) for notification in notifications])
            return
        redelivered = bool((self.request.delivery_info or {}).get("redelivered"))
        try:
            messages = self.read_message(args, kwargs, redelivered)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # Nobody can deliver it as it is. If the ledger holds it, the sweep sends it again, maybe to a newer worker.
            problem = error if isinstance(error, InvalidNotification) else type(error).__name__
            metrics.degraded("unreadable_message", f"{self.name}[{self.request.id}] cannot be read: {problem}")
            return
        self._handle(messages, one_by_one=redelivered)

    def _handle(self, messages: Sequence[Message], *, one_by_one: bool) -> None:
        """An exception means that nobody else holds the message: it goes back to the broker, never away with an ack."""
        failed: BaseException | None = None
        for batch in [[message] for message in messages] if one_by_one else [messages]:
            try:
                runtime.get().pipeline.handle(batch)
            except (WorkerShutdown, WorkerTerminate, KeyboardInterrupt):
                raise
            except (Exception, SystemExit) as error:
                failed = error
        if failed is None:
            return
        if metrics.degraded("requeued", f"{self.name} went back to the broker: {type(failed).__name__}"):
            log.error("%s[%s] failed and was requeued", self.name, self.request.id, exc_info=failed)
        time.sleep(REQUEUE_PAUSE_S)  # what failed for want of a server must not spin
        raise Reject(type(failed).__name__, requeue=True)
