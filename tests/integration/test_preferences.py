"""Opt-outs and quiet hours on real servers: in the worker, and again when a row is due."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from notifier import channels, hooks, metrics, preferences
from notifier.channels import Delivery, Outcome, Sent
from notifier.cli.why import lines, tell
from notifier.deadletters.schema import microseconds
from notifier.hooks import Event
from notifier.notification import Notification
from notifier.preferences import Preferences, QuietHours
from notifier.redis.keys import user_key
from notifier.runtime import Runtime
from notifier.wire import Message
from tests.deadletters import Bench, MakeBench

Say = Callable[..., None]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Iterator[Say]:
    """What the function says from now on, of all users or of those named: `say(quiet(), bert=None)`."""
    monkeypatch.setattr(metrics, "_last", {})

    def said(of_all: object = None, **of: object) -> None:
        def function(user_id: str) -> Any:
            answer = of.get(user_id, of_all)
            if isinstance(answer, Exception):
                raise answer
            return answer

        preferences.use(function)

    yield said
    preferences.use(None)


def quiet_until() -> datetime:
    """An hour from now, to the second."""
    return datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)


def quiet(end: datetime | None = None) -> Preferences:
    end = end or quiet_until()
    return Preferences(quiet_hours=QuietHours((end - timedelta(hours=3)).time(), end.time(), "UTC"))


def note(user: str = "anna", payload: object = 1, **options: Any) -> Notification:
    return Notification.create(user, payload, **options)


class Worker:
    """A bench whose worker's side is asked too."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.runtime = Runtime(bench.settings, worker=True)

    def send(self, *notifications: Notification) -> list[str]:
        """As a producer and a worker would; returns where each went at accept."""
        accepted = self.runtime.ledger.accept(notifications)
        self.runtime.pipeline.handle(
            [
                Message(n, accepted_us=a.accepted_us, epoch=a.epoch)
                for n, a in zip(notifications, accepted, strict=True)
                if a.status == "queued"
            ]
        )
        return [a.status for a in accepted]

    def rows(self) -> list[Any]:
        return self.bench.sql("SELECT user_id, notification_id, reason, state FROM dead_letters ORDER BY seq")

    def payloads(self, user: str = "anna") -> list[Any]:
        return [frame["payload"] for frame in self.bench.feed(user)]

    def later(self) -> None:
        """All that waits is due."""
        self.bench.replay.spill()
        self.bench.make_due()
        self.bench.replay.run()
        assert self.bench.balanced()


@pytest.fixture
def make_worker(make_bench: MakeBench) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def factory(**changes: Any) -> Worker:
        made.append(Worker(make_bench(**({"user_limit": "off", "preferences_seconds": 0} | changes))))
        return made[-1]

    yield factory
    for worker in made:
        worker.runtime.close()


MakeWorker = Callable[..., Worker]


def test_what_a_user_opted_out_of_ends_as_dropped_without_a_token(make_worker: MakeWorker, say: Say) -> None:
    worker = make_worker(user_limit="1/day", local_bucket="off")
    heard: list[Event] = []
    hooks.add(heard.append)
    say(Preferences({"like"}))
    try:
        worker.send(note(category="like", notification_id="a"))
        worker.send(note(category="like", priority="critical"))
    finally:
        hooks.remove(heard.append)
    assert [(event.what, event.reason) for event in heard] == [("dropped", "opted_out")] * 2
    story = tell(worker.runtime, note(notification_id="a").identity)
    assert lines(story)[-1].endswith(": the user opted out of its category")
    worker.send(note(payload="wanted"))
    assert worker.payloads() == ["wanted"]
    assert worker.bench.ledger.counts().dropped == 2
    assert worker.bench.balanced()


def test_quiet_hours_put_off_to_their_end_and_hold_nothing_back(make_worker: MakeWorker, say: Say) -> None:
    worker = make_worker()
    end = quiet_until()
    say(quiet(end), bert=None)
    sent = [note(notification_id="a"), note("bert"), note(payload="alarm", priority="critical")]
    assert worker.send(*sent) == ["queued"] * 3
    assert worker.payloads() == ["alarm"]
    assert worker.payloads("bert") == [1]
    worker.bench.replay.run()
    assert worker.rows() == [("anna", "a", "quiet_hours", "waiting")]
    ((retry_at,),) = worker.bench.sql("SELECT retry_at FROM dead_letters")
    assert end <= retry_at < end + timedelta(minutes=1)  # as long as the call took
    assert not worker.bench.client.exists(user_key("waiting", "anna", "websocket"))
    assert "the user is not to be disturbed" in "\n".join(lines(tell(worker.runtime, sent[0].identity)))
    say(None)
    assert worker.send(note(payload=2)) == ["queued"]
    worker.later()
    assert worker.payloads() == ["alarm", 2, 1]
    assert worker.bench.store.counts() == (0, 0)


def test_what_expires_in_quiet_hours_is_not_sent_late(make_worker: MakeWorker, say: Say) -> None:
    worker = make_worker()
    say(quiet())
    worker.send(note(ttl=1_200))
    worker.bench.replay.run()
    ((on_time,),) = worker.bench.sql("SELECT retry_at = expires_at FROM dead_letters")
    assert on_time
    worker.bench.sql("UPDATE dead_letters SET expires_at = to_timestamp(1)")
    say(None)
    worker.later()
    assert worker.payloads() == []
    assert worker.bench.ledger.counts().expired == 1


def test_rows_are_asked_for_again_when_they_are_due(make_worker: MakeWorker, say: Say) -> None:
    worker = make_worker()
    soon = datetime.now(UTC) + timedelta(minutes=10)
    worker.send(note(notification_id="a", not_before=soon), note("bert", notification_id="b", not_before=soon))
    worker.bench.deny("cleo", 2, wait_s=60)
    end = quiet_until()
    say(None, anna=quiet(end), bert=Preferences({("default", "websocket")}), cleo=quiet(end))
    worker.later()
    assert {(row.user_id, row.reason) for row in worker.rows()} == {("anna", "quiet_hours"), ("cleo", "quiet_hours")}
    assert worker.bench.ledger.counts().dropped == 1
    assert not worker.bench.client.exists(user_key("waiting", "cleo", "websocket"))
    ((first,),) = worker.bench.sql("SELECT min(retry_at) FROM dead_letters")
    assert end <= first < end + timedelta(minutes=1)
    say(Preferences({"default"}), cleo=None)
    worker.later()
    assert worker.rows() == []
    assert worker.payloads("cleo") == [{"n": 0}, {"n": 1}]
    assert worker.bench.ledger.counts().dropped == 2


def test_a_night_full_of_one_kind_becomes_a_digest(make_worker: MakeWorker, say: Say) -> None:
    worker = make_worker(user_limit="1/day", local_bucket="off")
    say(quiet())
    worker.send(*[note(payload=k, collapse_key="likes") for k in range(27)])
    say(None)
    worker.later()
    (frame,) = worker.bench.feed("anna")
    assert (frame["payload"], frame["digest"]["count"]) == (26, 27)


def test_a_night_of_one_user_is_bounded(make_worker: MakeWorker, say: Say) -> None:
    worker = make_worker(max_waiting=5)
    say(quiet())
    worker.send(*[note(payload=k) for k in range(8)])
    worker.bench.replay.run()
    assert worker.bench.store.counts().waiting == 5
    assert worker.bench.ledger.counts().dropped == 3
    assert worker.bench.balanced()


def test_at_the_end_of_a_night_what_is_due_at_once_is_paced(make_worker: MakeWorker, say: Say) -> None:
    worker = make_worker(user_limit="12/min burst 2", local_bucket="off")
    say(quiet())
    worker.send(*[note(payload=k) for k in range(30)])
    worker.bench.replay.spill()
    worker.bench.make_due()
    say(None)
    worker.bench.replay.run()
    left = 30 - len(worker.payloads())
    assert 25 <= left <= 28
    assert worker.payloads() == list(range(30 - left))
    ((places, due),) = worker.bench.sql(
        "SELECT count(DISTINCT retry_at), count(*) FILTER (WHERE retry_at < to_timestamp(:now)) FROM dead_letters",
        now=worker.bench.ledger.now_us() / 1e6,
    )
    assert places == left
    assert due <= 5


def test_where_nobody_can_say_it_waits_in_order_and_then_goes(make_worker: MakeWorker, say: Say) -> None:
    worker = make_worker()
    say(ConnectionError("postgresql://shop:password@db"), bert=None)
    assert worker.send(note(payload=0), note("bert")) == ["queued"] * 2
    assert worker.send(note(payload=1), note(payload=2)) == ["deferred"] * 2  # behind the one that waits
    assert worker.send(note(payload="alarm", priority="critical")) == ["queued"]
    assert worker.payloads() == []
    assert worker.payloads("bert") == [1]
    worker.later()  # still nobody
    assert [row.reason for row in worker.rows()] == ["preferences_unavailable"] * 4
    ((error, attempts),) = worker.bench.sql("SELECT DISTINCT last_error, attempts FROM dead_letters")
    assert (error, attempts) == ("notifier.preferences: ConnectionError", 0)
    say(None)
    worker.later()
    assert [payload for payload in worker.payloads() if payload != "alarm"] == [0, 1, 2]
    assert worker.bench.ledger.counts().delivered == 5


class Mail:
    name = "mail"
    lease_s = 60.0

    def __init__(self) -> None:
        self.sent: list[str] = []

    def deliver(self, batch: Sequence[Delivery]) -> list[Outcome]:
        self.sent += [delivery.notification.user_id for delivery in batch]
        return [Sent()] * len(batch)


def test_channels_outside(make_worker: MakeWorker, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    mail = Mail()
    monkeypatch.setattr(channels, "get", lambda _name: mail)
    worker = make_worker()
    say(None, anna=Preferences({("news", "mail")}), bert=quiet())
    worker.send(*[note(user, channel="mail", category="news") for user in ("anna", "bert", "cleo")])
    assert mail.sent == ["cleo"]
    worker.later()
    assert mail.sent == ["cleo"]
    assert [(row.user_id, row.reason) for row in worker.rows()] == [("bert", "quiet_hours")]
    say(None)
    worker.later()
    assert mail.sent == ["cleo", "bert"]
    assert worker.bench.ledger.counts().dropped == 1


def test_the_ledger_knows_the_end_to_the_microsecond(make_worker: MakeWorker, say: Say) -> None:
    """Never before it, whatever the worker's own clock says."""
    worker = make_worker()
    end = quiet_until()
    say(quiet(end))
    sent = note()
    worker.send(sent)
    entry = tell(worker.runtime, sent.identity).entry
    assert entry
    assert entry.retry_us >= microseconds(end)
