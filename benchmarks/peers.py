"""What notifier is measured against: Celery tasks with the same options, in the same workers, on the same broker."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import psycopg2
from celery import shared_task
from redis import Redis

from notifier.redis.keys import user_key
from tasks.broker import HARD_LIMIT_S, SOFT_LIMIT_S

TABLE = "events"
SCHEMA = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (id bigserial PRIMARY KEY, user_id text NOT NULL, payload text NOT NULL,"
    " created_at timestamptz NOT NULL DEFAULT now())",
    f"CREATE INDEX IF NOT EXISTS {TABLE}_user ON {TABLE} (user_id, created_at)",
)
OPTIONS: dict[str, Any] = {
    "acks_late": True,
    "reject_on_worker_lost": True,
    "acks_on_failure_or_timeout": False,
    "ignore_result": True,
    "soft_time_limit": SOFT_LIMIT_S,
    "time_limit": HARD_LIMIT_S,
}


@shared_task(name="benchmarks.empty", **OPTIONS)
def empty(user_id: str, payload: Any) -> None:
    """Nothing: what Celery itself costs."""


@shared_task(name="benchmarks.push", **OPTIONS)
def push(user_id: str, payload: Any, stream_id: str, previous: str, frame: str) -> None:
    """Only a PUBLISH, which the gateway hands to the user's socket."""
    _redis(os.getpid()).publish(user_key("feed", user_id, "websocket"), f"{stream_id} {previous} {frame}")


@shared_task(name="benchmarks.insert_and_push", **OPTIONS)
def insert_and_push(user_id: str, payload: Any, stream_id: str, previous: str, frame: str) -> None:
    """The article's start: a row and a commit for each event, then the push. On a connection that is kept open."""
    database = _database(os.getpid())
    with database, database.cursor() as cursor:
        cursor.execute(f"INSERT INTO {TABLE} (user_id, payload) VALUES (%s, %s)", (user_id, frame))
    _redis(os.getpid()).publish(user_key("feed", user_id, "websocket"), f"{stream_id} {previous} {frame}")


@cache
def _redis(pid: int) -> Redis:
    return Redis.from_url(os.environ["NOTIFIER_REDIS_URL"])


@cache
def _database(pid: int) -> Any:
    return psycopg2.connect(os.environ["NOTIFIER_DATABASE_URL"])
