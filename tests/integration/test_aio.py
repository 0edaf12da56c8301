"""anotify: notify for event loops, which must not feel what servers do."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable

from notifier import Notification, anotify, anotify_many, notify, runtime
from notifier.embedded.valkey import Valkey
from notifier.errors import InvalidNotification, NotAccepted
from notifier.settings import Settings
from tests.support import published

PATIENCE_S = 60.0


def test_accepted_and_published_as_by_notify(use: object, valkey: Valkey) -> None:
    async def main() -> list[str]:
        return await asyncio.gather(*(anotify(n, n, notification_id=f"n{n:03}") for n in range(250)))

    assert asyncio.run(main()) == published(valkey) == [f"n{n:03}" for n in range(250)]
    assert asyncio.run(anotify(1, 1, notification_id="n001")) == "n001"
    counts = runtime.get().ledger.counts()
    assert (counts.accepted, counts.duplicate) == (251, 1)


def test_many(use: object, valkey: Valkey) -> None:
    made = [Notification.create(f"user-{k}", k) for k in range(250)]
    assert asyncio.run(anotify_many(n for n in [*made, made[0]])) == {"queued": 250, "duplicate": 1}
    assert sorted(published(valkey)) == sorted(n.notification_id for n in made)


def test_bad_input_is_refused_at_the_call_and_alone(use: object, valkey: Valkey) -> None:
    async def main() -> list[object]:
        calls = [anotify("", 1), anotify(1, 1, channel="pigeon"), anotify(1, 1, txl=3), anotify(1, 1)]
        return await asyncio.gather(*calls, return_exceptions=True)

    user, channel, option, good = asyncio.run(main())
    assert isinstance(user, InvalidNotification) and isinstance(channel, InvalidNotification)
    assert isinstance(option, TypeError) and str(option).startswith("anotify() got an unexpected keyword")
    assert published(valkey) == [good]


def test_the_loop_runs_on_and_every_call_ends_while_servers_are_silent(
    use: Callable[..., None], fresh_valkey: Callable[..., Valkey]
) -> None:
    server = fresh_valkey()
    use(redis_url=server.url(0), broker_url=server.url(1))
    notify(1, "connections are warm")
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    async def main() -> list[object]:
        ticking = asyncio.create_task(tick())
        calls = (anotify(f"user-{n}", n, notification_id=f"n{n}") for n in range(4_000))
        try:
            # so many that a bound for each hundred, one after the other, would be longer
            return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE_S / 2)
        finally:
            ticking.cancel()

    server.freeze()
    try:
        failed = asyncio.run(main())
    finally:
        server.thaw()
    assert turns > 10
    for n, error in enumerate(failed):
        assert isinstance(error, NotAccepted)
        assert (error.notification_id, error.recipients) == (f"n{n}", [f"user-{n}"])


def test_cancelled(use: Callable[..., None], fresh_valkey: Callable[..., Valkey], valkey: Valkey) -> None:
    server = fresh_valkey()
    use(redis_url=server.url(0), state_timeout=PATIENCE_S)
    notify(1, "connections are warm", notification_id="warm")

    async def main() -> None:
        held = asyncio.create_task(anotify(1, 1, notification_id="held"))
        await asyncio.sleep(0.2)  # the thread is at it, most likely: what is asserted holds in either case
        waits = asyncio.create_task(anotify(1, 1, notification_id="waits"))
        await asyncio.sleep(0)
        for task in (held, waits):
            task.cancel()
        await asyncio.wait([held, waits], timeout=PATIENCE_S / 2)  # the server is silent still
        assert held.cancelled() and waits.cancelled()

    server.freeze()
    try:
        asyncio.run(main())
    finally:
        server.thaw()
    assert asyncio.run(anotify(1, 1, notification_id="held")) == "held"  # is safe, whether it had been accepted or not
    assert published(valkey) == ["warm", "held"]


def _send_in_child(settings: Settings) -> None:
    runtime.get(settings)
    asyncio.run(asyncio.wait_for(anotify(1, 1, notification_id="child"), PATIENCE_S))


def test_a_forked_child_sends_by_itself(use: object, settings: Settings, valkey: Valkey) -> None:
    asyncio.run(anotify(1, 1, notification_id="parent"))
    child = multiprocessing.get_context("fork").Process(target=_send_in_child, args=(settings,))
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == 0 and published(valkey) == ["parent", "child"]
