"""A gateway that was frozen while its connection to state Redis died must not stay deaf; nor seem dead when busy."""

from __future__ import annotations

import asyncio
import time

import pytest

uvloop = pytest.importorskip("uvloop")

from notifier.embedded.valkey import Valkey  # noqa: E402
from notifier.errors import StateUnavailable  # noqa: E402
from notifier.gateway import hub as hubs  # noqa: E402
from notifier.gateway.hub import Hub  # noqa: E402
from notifier.lab.proxy import Proxy  # noqa: E402

FROZEN_S = 0.3


@pytest.mark.parametrize("round_", range(3))
def test_frozen_while_its_connections_are_reset(valkey: Valkey, monkeypatch: pytest.MonkeyPatch, round_: int) -> None:
    """On uvloop writing to a transport that has been closed is a RuntimeError, no OSError (MagicStack/uvloop#506)."""
    monkeypatch.setattr(hubs, "BEAT_S", FROZEN_S / 2)  # so that it wants to write when it wakes

    async def live() -> None:
        with Proxy(valkey.port) as proxy:
            hub = Hub(valkey.url().replace(str(valkey.port), str(proxy.port)), 60.0)
            listening = asyncio.create_task(hub.run())
            await _answers(hub)
            proxy.cut()
            time.sleep(FROZEN_S)  # the whole loop, as SIGSTOP does
            await asyncio.sleep(FROZEN_S)
            await _answers(hub)
            assert not listening.done()
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    uvloop.run(live())


def test_whether_it_is_ready_is_not_asked_behind_the_reads_of_its_clients(valkey: Valkey) -> None:
    """Thousands that come back read for many seconds: whoever ends it for that makes them come back once more."""

    async def live() -> None:
        hub = Hub(valkey.url(), 60.0)
        listening = asyncio.create_task(hub.run())
        await _answers(hub)
        for _ in range(hubs.READERS):
            await hub._reading.acquire()
        await _answers(hub)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    uvloop.run(live())


async def _answers(hub: Hub) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                await hub.ping()
            except StateUnavailable:
                await asyncio.sleep(0.05)
            else:
                return
