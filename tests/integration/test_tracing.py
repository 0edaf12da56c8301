"""One trace from accept to push, through real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from notifier import anotify
from notifier.embedded.valkey import Valkey
from notifier.notification import Identity
from notifier.settings import Settings
from tests.deadletters import MakeBench
from tests.gateway import Running, Writer, receive
from tests.support import eventually
from tests.tracing import Recording, operations, recording

SECRET = "a secret of the tests, 32 characters"


@pytest.fixture
def recorded() -> Iterator[Recording]:
    with recording() as made:
        yield made


@pytest.fixture
def gateway(valkey: Valkey, recorded: Recording) -> Iterator[Running]:
    with Running(Settings(redis_url=valkey.url(), secret=SECRET)).running() as running:
        running.wait_until_ready()
        yield running


def test_denied_then_replayed(make_bench: MakeBench, recorded: Recording) -> None:
    bench = make_bench(user_limit="off")
    with recorded.tracer.start_as_current_span("view") as view:
        bench.deny("anna", 1, notification_id="a")
    bench.deny("bert", 1, notification_id="a", ttl=0.001)
    bench.replay.run()
    bench.replay.run()
    spans = recorded.of(Identity("anna", "websocket", "a"))
    assert operations(spans) == ["accept", "defer", "replay"]
    assert [(s.attributes or {}).get("notifier.reason") for s in spans] == [None, "rate_limited", None]
    assert [link.context for span in spans for link in span.links] == [view.get_span_context()] * 2
    expired = recorded.of(Identity("bert", "websocket", "a"))
    assert set(operations(expired)) - {"defer"} == {
        "accept",
        "settle",
    }  # it may have been denied within its millisecond
    assert (expired[-1].attributes or {})["notifier.end"] == "expired"


def test_what_a_page_is_pushed(gateway: Running, valkey: Valkey, recorded: Recording) -> None:
    writer = Writer(valkey.url())

    def pushed() -> list[Any]:
        return [(span.attributes or {})["messaging.message.id"] for span in recorded.spans]

    writer.send("ann")  # n1: from before the page was opened
    with gateway.connect("ann") as connection:
        assert [receive(connection).get("notification_id") for _ in range(2)] == [None, "n1"]
        writer.send("ann", {"payload": "secret", ',"payload":': 1})
        last_id = receive(connection)["id"]
    writer.send("ann", "secret")
    with gateway.connect("ann", last_id) as connection:
        assert [receive(connection).get("notification_id") for _ in range(2)] == [None, "n3"]
    with gateway.connect("ann") as connection:
        assert [receive(connection).get("notification_id") for _ in range(4)] == [None, "n1", "n2", "n3"]
        writer.send("ann", publish=False)
        writer.send("ann")  # which shows that one was missed: the feed is read once more
        assert [receive(connection).get("notification_id") for _ in range(2)] == ["n4", "n5"]
    eventually(lambda: pushed() == ["n2", "n3", "n4", "n5"], timeout_s=60)
    assert operations(recorded.of(Identity("ann", "websocket", "n2"))) == ["push"]
    assert "secret" not in "".join(span.to_json() for span in recorded.spans)


def test_anotify_links_to_each_caller(use: Callable[..., None], recorded: Recording) -> None:
    use()

    async def call(user_id: str) -> Any:
        with recorded.tracer.start_as_current_span("view") as view:
            await anotify(user_id, "secret", notification_id="n")
            return view.get_span_context()

    async def main() -> Any:
        return await asyncio.gather(call("ann"), call("bob"))

    for user_id, caller in zip(("ann", "bob"), asyncio.run(main()), strict=True):
        (span,) = recorded.of(Identity(user_id, "websocket", "n"))
        assert [link.context for link in span.links] == [caller]


def test_accepted_without_the_ledger(use: Callable[..., None], recorded: Recording) -> None:
    use(redis_url="redis://127.0.0.1:1/0")
    asyncio.run(anotify("ann", "secret", notification_id="n"))
    (span,) = recorded.of(Identity("ann", "websocket", "n"))
    assert (span.attributes or {})["notifier.status"] == "published"
