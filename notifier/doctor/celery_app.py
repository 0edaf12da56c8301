"""A Celery app that runs our tasks, ours or a team's own: times, and what its configuration does to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kombu import Connection

from notifier.doctor.finding import Finding, ok, problem, warning
from notifier.redis.broker import place_of
from notifier.settings import Settings
from notifier.wire import PROBE, REPLAY_DEAD_LETTERS, SEND_NOTIFICATION, SEND_NOTIFICATIONS, SWEEP_UNSETTLED

KOMBU_VISIBILITY_S = 3_600.0
TASKS = (SEND_NOTIFICATION, SEND_NOTIFICATIONS, REPLAY_DEAD_LETTERS, SWEEP_UNSETTLED, PROBE)


def celery_app(app: Any, settings: Settings, *, name: str = "") -> Iterator[Finding]:
    """`app` is finalized and its tasks are imported. `name` is a team's, as given to -A; empty: ours."""
    prefix = "app" if name else "celery"
    registered = {task: app.tasks[task] for task in TASKS if task in app.tasks}
    if missing := [task for task in TASKS if task not in registered]:
        why = "its workers discard our messages as unknown"
        yield problem(
            f"{prefix}.tasks", f"{name} lacks {', '.join(missing)}", why, 'include=["tasks"] in the Celery app'
        )
        return
    yield from times(prefix, app, registered)
    yield from rules(prefix, registered)
    if name:
        yield from configuration(prefix, app, settings, name)


def times(prefix: str, app: Any, registered: dict[str, Any]) -> Iterator[Finding]:
    """A message is not handed out again while a worker may still be at it."""
    limits_s = [float(task.time_limit or app.conf.task_time_limit or 0) for task in registered.values()]
    check = f"{prefix}.time_limits"
    if not all(limits_s):
        why = "a task that hangs holds its worker and its message for ever"
        yield warning(check, "our tasks have no time limit", why, "take task_annotations of notifier.* out of the app")
        return
    longest_s = max(limits_s)
    if "redis" not in str(app.connection_for_write().transport_cls):
        yield ok(check, f"tasks end after {longest_s:g} s")
        return
    visible_s = float((app.conf.broker_transport_options or {}).get("visibility_timeout", KOMBU_VISIBILITY_S))
    if visible_s <= longest_s:
        why = "a message is handed out again while its worker is still at it; each such start counts towards parking"
        mend = f"visibility_timeout over {longest_s:g} s in broker_transport_options"
        yield problem(check, f"visibility timeout {visible_s:g} s, time limit {longest_s:g} s", why, mend)
    else:
        yield ok(check, f"time limit {longest_s:g} s, visibility timeout {visible_s:g} s")


def rules(prefix: str, registered: dict[str, Any]) -> Iterator[Finding]:
    """What an app's task_annotations may have changed."""
    changed = []
    for name in (SEND_NOTIFICATION, SEND_NOTIFICATIONS):
        task = registered[name]
        kept = {"acks_late": True, "reject_on_worker_lost": True, "ignore_result": True, "rate_limit": 0}
        changed += [
            f"{name}.{rule} = {getattr(task, rule)!r}" for rule, value in kept.items() if getattr(task, rule) != value
        ]
    if changed:
        why = (
            "late acknowledgement is what brings a message back after a crash; rate_limit keeps it in a worker's memory"
        )
        yield problem(
            f"{prefix}.rules", ", ".join(changed), why, "take task_annotations of notifier.* or '*' out of the app"
        )
    else:
        yield ok(f"{prefix}.rules", "late acknowledgement, no result, no rate_limit")


def configuration(prefix: str, app: Any, settings: Settings, name: str) -> Iterator[Finding]:
    """A team's own settings."""
    conf = app.conf
    theirs, ours = (_where(Connection(url)) for url in (str(app.connection_for_write().as_uri()), settings.broker_url))
    if theirs != ours:
        what = f"{name} is on {theirs}, NOTIFIER_BROKER_URL on {ours}"
        why = "notify(), the commands and threads without an app publish where no worker of this app listens"
        yield problem(f"{prefix}.broker", what, why, "set NOTIFIER_BROKER_URL to the app's broker")
    if (conf.broker_transport_options or {}).get("global_keyprefix"):
        why = "notify() and the commands publish without it, where no worker of this app listens"
        yield warning(
            f"{prefix}.broker", "global_keyprefix is set", why, "a database of its own instead (redis://.../3)"
        )
    if "json" not in conf.accept_content and "application/json" not in conf.accept_content:
        why = "workers refuse every message of ours"
        yield problem(f"{prefix}.content", "accept_content lacks json", why, 'add "json" to accept_content')
    if conf.task_always_eager:
        why = "notifications are delivered within the caller's process; fine in tests"
        yield warning(f"{prefix}.eager", "task_always_eager is on", why, "turn it off in production")
    if conf.worker_prefetch_multiplier != 1:
        why = "messages sit behind slow ones in a worker that has taken too many"
        what = f"worker_prefetch_multiplier is {conf.worker_prefetch_multiplier}"
        yield warning(f"{prefix}.prefetch", what, why, "worker_prefetch_multiplier = 1")
    if conf.result_backend and not conf.result_expires:
        why = "results of your tasks are kept for ever (ours have none)"
        yield warning(f"{prefix}.results", "results never expire", why, "result_expires = 86400")
    if conf.result_backend and not conf.task_ignore_result:
        yield ok(f"{prefix}.results", "there is a result backend; our tasks store nothing in it")


def _where(connection: Connection) -> str:
    """transport://host:port/database (or virtual host), without user and password."""
    info = connection.info()
    connection.port = info["port"]  # where none is named, the usual one
    place, home = place_of(connection), str(info["virtual_host"])
    if "@" in home:  # what it is the rest of is no database
        return place
    return f"amqp://{place}/{home}" if "amqp" in info["transport"] else f"redis://{place}/{home.strip('/') or 0}"
