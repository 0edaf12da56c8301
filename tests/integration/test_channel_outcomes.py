"""Webhooks through worker and replay, as a notification meets them; and the receiver that docs/channels.md shows."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from asyncio import CancelledError
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from notifier import channels
from notifier.channels import Failed, RetryAt, Sent
from notifier.channels.addresses import Addresses
from notifier.channels.breaker import FAILURES, Breakers
from notifier.channels.webhook import WebhookChannel
from notifier.errors import SettingsError
from notifier.notification import Notification
from notifier.pipeline import Pipeline
from notifier.settings import Settings
from notifier.wire import Message
from tests.deadletters import Bench, MakeBench
from tests.receiver import Receiver, a_delivery, says
from tests.support import eventually

ROOT = Path(__file__).resolve().parents[2]
SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


@pytest.fixture
def bench(make_bench: MakeBench, hook: Receiver, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Anna and Bert are reached at the receiver, nobody else anywhere."""
    bench = make_bench(user_limit="off", webhook_secret=SECRET, webhook_allow_networks="127.0.0.1")
    lookup = Addresses([lambda user, _channel: hook.url() if user in ("anna", "bert") else None])
    channel = WebhookChannel(bench.settings, lookup, Breakers())
    monkeypatch.setattr(channels, "get", lambda _: channel)
    return bench


def handle(bench: Bench, *users: str) -> None:
    """As a worker does with one message to these users."""
    notes = [Notification.create(user, {"text": "hi"}, channel="webhook") for user in users]
    accepted = bench.ledger.accept(notes)
    messages = [Message(n, accepted_us=a.accepted_us, epoch=a.epoch) for n, a in zip(notes, accepted, strict=True)]
    Pipeline(bench.ledger, bench.limiter, bench.store, bench.settings, bench.replay.run_ids).handle(messages)


def rows(bench: Bench) -> list[tuple[object, ...]]:
    found = bench.sql("SELECT user_id, state, reason, attempts, last_error FROM dead_letters ORDER BY user_id")
    return [tuple(row) for row in found]


def test_a_worker_delivers_and_parks_who_has_no_address(bench: Bench, hook: Receiver) -> None:
    handle(bench, "anna", "bert", "cleo")
    assert len(hook.requests) == 2
    counts = bench.ledger.counts()
    assert (counts.delivered, counts.parked) == (2, 1)
    bench.replay.run()
    assert rows(bench) == [
        ("cleo", "parked", "delivery_failed", 0, "user has no address on channel webhook"),
    ]
    assert bench.balanced()


def test_retry_after_holds_back_the_replay_and_the_id_stays(bench: Bench, hook: Receiver) -> None:
    hook.script = says(503, "Retry-After: 120")
    handle(bench, "anna")
    bench.replay.run()
    assert rows(bench) == [("anna", "waiting", "delivery_failed", 1, f"127.0.0.1:{hook.port} answered 503")]
    ((wait_s,),) = bench.sql("SELECT extract(epoch FROM retry_at - now()) FROM dead_letters")
    assert 100 < wait_s < 125
    hook.script = says(204)
    bench.make_due()
    bench.replay.run()
    assert rows(bench) == []
    first, again = hook.requests
    assert first.headers["webhook-id"] == again.headers["webhook-id"]
    assert first.body == again.body
    assert bench.ledger.counts().delivered == 1
    assert bench.balanced()


def test_a_digest_is_one_webhook(bench: Bench, hook: Receiver) -> None:
    bench.deny("anna", 3, channel="webhook", collapse_key="likes")
    bench.replay.run()
    (request,) = hook.requests
    assert b'"digest":{"count":3,' in request.body
    counts = bench.ledger.counts()
    assert (counts.delivered, counts.digested) == (1, 2)


@pytest.mark.parametrize(("absent", "name"), [("httpx", "webhook"), ("httpcore", "webhook"), ("apprise", "apprise")])
def test_a_worker_that_lacks_the_extra_says_which(absent: str, name: str) -> None:
    code = f"""
import sys
sys.modules[{absent!r}] = None
from notifier import channels, errors
assert {name!r} in channels.known()
try:
    channels.get({name!r})
except errors.SettingsError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"pip install 'celery-notifier[{name}]'" in done.stdout


class _Point:
    """An entry point that gives what a test wants."""

    name = "odd"

    def __init__(self, given: object) -> None:
        self._given = given

    def load(self) -> object:
        return lambda: self._given


class _Channel:
    name, lease_s = "odd", 10.0

    def deliver(self, batch: object) -> object:
        return []


class _OtherName(_Channel):
    name = "other"


class _NoLease(_Channel):
    lease_s = None  # type: ignore[assignment]


class _NoDeliver:
    name, lease_s = "odd", 10.0


@pytest.mark.parametrize(("given", "problem"), [
    (_OtherName(), "another name"), (_NoLease(), "lease_s"), (_NoDeliver(), "deliver"), (7, "lease_s"),
])  # fmt: skip
def test_a_plugin_that_is_no_channel_is_refused_by_name(
    given: object, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "entry_points", lambda **_: [_Point(given)])
    with pytest.raises(SettingsError, match=f"'odd'.*{problem}"):
        channels.get("odd")


def test_a_plugin_that_can_never_be_made_is_refused_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(_Point):
        def load(self) -> object:
            raise AttributeError("password=hunter2")

    monkeypatch.setattr(channels, "entry_points", lambda **_: [Broken(None)])
    with pytest.raises(SettingsError, match="AttributeError") as refused:
        channels.get("odd")
    assert "hunter2" not in str(refused.value)


def test_a_plugin_that_cannot_be_made_now_is_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[BaseException] = [ConnectionError("password=hunter2"), CancelledError()]

    class Passing(_Point):
        def load(self) -> object:
            if errors:
                raise errors.pop(0)
            return super().load()

    monkeypatch.setattr(channels, "entry_points", lambda **_: [Passing(_Channel())])
    note: Any = object()
    for problem in ("ConnectionError", "CancelledError"):
        assert channels.get("odd").deliver([note]) == [RetryAt(f"channel 'odd' cannot be made: {problem}")]
    try:
        assert isinstance(channels.get("odd"), _Channel)
    finally:
        channels._made.cache_clear()


def test_a_channel_that_cannot_be_made_is_not_made_again_while_its_breaker_is_open(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make it may take as long as a server is silent, for each message, and hold up all other channels."""
    bench = make_bench(user_limit="off")
    own, made = Breakers(), 0

    def load(_name: str) -> object:
        nonlocal made
        made += 1
        raise channels._NotNow("channel 'webhook' cannot be made: ConnectionError")

    monkeypatch.setattr(channels, "_made", load)
    for module in ("notifier.pipeline", "notifier.deadletters.claimed", "notifier.channels.attempts"):
        monkeypatch.setattr(f"{module}.breakers", own)
    for number in range(FAILURES + 3):
        handle(bench, f"user-{number}")
    assert made == FAILURES
    bench.replay.spill()
    bench.make_due()
    assert bench.replay.run().claimed == FAILURES + 3
    assert made == FAILURES
    assert bench.store.counts() == (FAILURES + 3, 0)
    assert {reason for _, _, reason, *_ in rows(bench)} == {"breaker_open"}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of the receiver that the page shows, word for word."""
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    code = re.findall(r"^```python\n(import os\n\nfrom standardwebhooks.*?)^```", text := _page(), re.M | re.S)
    assert len(code) == 1, text[:100]
    scope: dict[str, object] = {}
    exec(compile(code[0], "docs/channels.md", "exec"), scope)
    server = uvicorn.Server(uvicorn.Config(scope["app"], port=0, log_level="error"))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started, timeout_s=60)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


def _page() -> str:
    return (ROOT / "docs/channels.md").read_text()


def test_the_receiver_on_the_page_takes_each_once_and_no_forged_one(
    shown: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def channel(secret: str) -> WebhookChannel:
        settings = Settings(webhook_secret=secret, webhook_allow_networks="127.0.0.1")
        return WebhookChannel(settings, Addresses([lambda _u, _c: f"http://127.0.0.1:{shown}/hook"]), Breakers())

    delivery = a_delivery("anna", {"text": "hi"})
    good = channel(SECRET)
    assert good.deliver([delivery]) == [Sent()]
    assert good.deliver([delivery._replace(attempt=2)]) == [Sent()]
    (forged,) = channel("whsec_" + "YWJj" * 8).deliver([a_delivery("anna", {"text": "evil"})])
    assert isinstance(forged, Failed)
    assert capsys.readouterr().out == "anna {'text': 'hi'}\n"
