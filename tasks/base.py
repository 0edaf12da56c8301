"""What wraps every notification task: validated and accepted at the call, never lost in the worker."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from celery import Task
from celery.exceptions import Reject, WorkerShutdown, WorkerTerminate
from celery.result import AsyncResult

from notifier import logs, metrics, producer, runtime
from notifier.errors import InvalidNotification, NotAccepted, Unavailable
from notifier.notification import Notification, new_id
from notifier.wire import Message
from tasks import options as celery_options
from tasks.broker import HARD_LIMIT_S, SOFT_LIMIT_S

log = logging.getLogger("notifier.tasks")
REQUEUE_PAUSE_S = 0.5
ONE_BY_ONE_S = SOFT_LIMIT_S / 2  # the last to begin has as long again


class StrictTask(Task):
    """A task whose broken messages are refused, see tasks.strict."""

    abstract = True
    Request = "tasks.strict:StrictRequest"  # by name: who only sends loads nothing of Celery's worker
    Strategy = "tasks.strict:strategy"


class NotificationTask(StrictTask):
    """A task whose message is a promise: the rules are attributes, so they hold in any app that includes the task."""

    abstract = True
    typing = False  # the worker takes arguments of older and newer versions
    serializer = "json"
    acks_late = True
    reject_on_worker_lost = True
    acks_on_failure_or_timeout = False
    ignore_result = True
    rate_limit = 0  # none: a team's task_default_rate_limit would keep notifications in a worker's memory
    soft_time_limit = SOFT_LIMIT_S
    time_limit = HARD_LIMIT_S

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[list[Notification]]:
        """The notifications that a call asks for, a slice at a time, all with one id.

        Raises InvalidNotification or TypeError (wrong arguments) before the first, InvalidRecipients after the last.
        """
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
        if not isinstance(args, list | tuple | None) or not isinstance(kwargs, Mapping | None):
            raise TypeError("args must be a list or a tuple, kwargs a mapping")  # a str would be one argument a letter
        app = self._get_app()
        inherits = bool(app.conf.task_inherit_parent_priority and options.get("parent_id"))
        given = celery_options.translate(dict(kwargs or {}), task_id, options, inherits=inherits)
        slices = self.read_call(args or (), given)
        result: AsyncResult | None = None
        for notifications in slices:
            notification_id = notifications[0].notification_id
            if app.conf.task_always_eager:
                producer.check_notifications(notifications)
                result = self.apply(kwargs={"notifications": notifications}, task_id=notification_id)
                continue
            try:
                producer.accept_and_publish(app, notifications)
            except NotAccepted as error:
                raise NotAccepted(notification_id, [*error.recipients, *_users_of(slices)]) from error.__cause__
            result = result or AsyncResult(notification_id, app=app, task_name=self.name)
        return result or AsyncResult(task_id or new_id(), app=app, task_name=self.name)

    def work(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Run what a message, a direct call or eager mode brought."""
        if self.request.called_directly or self.request.is_eager:
            ready = kwargs.get("notifications")
            for notifications in [ready] if ready else self.read_call(args, kwargs):
                producer.check_notifications(notifications)
                runtime.get().pipeline.handle([Message(notification) for notification in notifications])
            return
        redelivered = bool((self.request.delivery_info or {}).get("redelivered"))
        messages: list[Message] = []
        with self.unreadable_is_loud():
            messages = self.read_message(args, kwargs, redelivered)
        if not messages:
            return
        self.request.about = _about(messages)  # for Celery's own lines on this message, see quiet.Identify
        # Of those that come again one may have killed its worker: the others must not count its starts as theirs.
        self._handle(messages, one_by_one=any(message.again for message in messages))

    @contextlib.contextmanager
    def unreadable_is_loud(self) -> Iterator[None]:
        """Nobody can deliver it as it is. If the ledger holds it, the sweep sends it again, maybe to a newer worker."""
        try:
            yield
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem = error if isinstance(error, InvalidNotification) else type(error).__name__
            about = {"notification_id": self.request.id, "task": self.name}
            metrics.degraded("unreadable_message", f"a message cannot be read: {problem}", about=about)

    def _handle(self, messages: Sequence[Message], *, one_by_one: bool) -> None:
        """An exception means that nobody else holds the message: it goes back to the broker, never away with an ack."""
        failed: BaseException | None = None
        left, until_s = list(messages), time.monotonic() + ONE_BY_ONE_S
        while left:
            batch, left = (left[:1], left[1:]) if one_by_one else (left, [])
            try:
                counted = runtime.get().pipeline.handle(batch)
                one_by_one = one_by_one and counted  # else each would wait for a server in vain
            except Unavailable as error:  # so it would be for the others
                failed = error
                break
            except (WorkerShutdown, WorkerTerminate, KeyboardInterrupt):
                raise
            except BaseException as error:  # SystemExit, too: the message goes back before the child ends
                failed = error
            if left and time.monotonic() > until_s:
                break
        if failed is None:
            if left:  # they come again; those that have ended are passed over then
                raise Reject("not all within its time", requeue=True)
            return
        about = _about(messages)
        if metrics.degraded("requeued", f"{self.name} went back to the broker: {type(failed).__name__}", about=about):
            logs.say(log, logging.ERROR, f"{self.name} failed and was requeued\n{logs.trace(failed)}", about)
        time.sleep(REQUEUE_PAUSE_S)  # what failed for want of a server must not spin
        raise Reject(type(failed).__name__, requeue=True)


def _about(messages: Sequence[Message]) -> Mapping[str, Any]:
    """Whom a line about these is about: what they have in common, and how many they are."""
    about: dict[str, Any] = logs.of(messages[0].identity)
    if len(messages) > 1:
        del about["user_id"]
        about["recipients"] = len(messages)
        if len({message.notification.notification_id for message in messages}) > 1:
            del about["notification_id"]
    return about


def _users_of(slices: Iterator[list[Notification]]) -> Iterator[str]:
    """The recipients that are left. Those that cannot be are of no interest any more."""
    with contextlib.suppress(InvalidNotification):
        for notifications in slices:
            yield from (notification.user_id for notification in notifications)
