"""One gateway process: idle clients, memory of each, frames/s to 1,000 clients, latency, a storm of reconnects.

    python -m benchmarks.gateway                  # writes benchmarks/results/gateway.json
    python -m benchmarks.gateway --idle 1000 --seconds 3

The gateway, a Valkey and this program share the machine; the clients are bare asyncio protocols, so that they cost less
than what they measure. Frames are written to the feeds as the delivery script writes them, in pipelines.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil
import uvloop
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from benchmarks.row import Row, row
from notifier.embedded.process import free_port
from notifier.embedded.valkey import Valkey
from notifier.gateway.auth import make_token
from notifier.gateway.server import allow_many_connections
from notifier.redis import keys

RESULTS = Path(__file__).parent / "results" / "gateway.json"
SECRET = secrets.token_urlsafe(32)
PAYLOAD = "x" * 100
IDLE_S = 25.0  # longer than the pings are apart


@dataclass
class Tally:
    """What all clients saw."""

    open: int = 0
    lost: int = 0
    frames: int = 0
    disorder: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    timed: bool = False


class BareClient(asyncio.Protocol):
    """The least that is a websocket client: handshake, unmasked server frames, pong."""

    def __init__(self, user_id: str, tally: Tally, last_id: str = "") -> None:
        self.user_id = user_id
        self.last = (0, 0)
        self.last_id = last_id
        self.ready = asyncio.get_running_loop().create_future()
        self._tally = tally
        self._buffer = b""
        self._shaken = False
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        query = f"?last_id={self.last_id}" if self.last_id else ""
        transport.write(
            f"GET /ws{query} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\nSec-WebSocket-Version: 13\r\n"
            f"Authorization: Bearer {make_token(SECRET, self.user_id, 3_600)}\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._shaken:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self.ready.set_exception(ConnectionError(head.splitlines()[0].decode()))
                self.transport.close()
                return
            self._shaken, self._buffer = True, rest
        self._frames()

    def _frames(self) -> None:
        buffer, at = self._buffer, 0
        while len(buffer) - at >= 2:
            opcode, length, body = buffer[at] & 15, buffer[at + 1], at + 2
            if length == 126:
                length, body = int.from_bytes(buffer[at + 2 : at + 4], "big"), at + 4
            elif length == 127:
                length, body = int.from_bytes(buffer[at + 2 : at + 10], "big"), at + 10
            if len(buffer) < body + length:
                break
            at = body + length
            if opcode == 1:
                self._text(buffer[body:at])
            elif opcode == 9:
                self.transport.write(bytes([0x8A, 0x80 | length, 0, 0, 0, 0]) + buffer[body:at])
        self._buffer = buffer[at:]

    def _text(self, text: bytes) -> None:
        if text.startswith(b'{"type":'):
            if not self.ready.done():
                self._tally.open += 1
                self.ready.set_result(None)
            return
        stream_id = text[7 : text.index(b'"', 7)].decode()
        milliseconds, _, sequence = stream_id.partition("-")
        now = int(milliseconds), int(sequence)
        self._tally.disorder += now <= self.last
        self.last, self.last_id = now, stream_id
        self._tally.frames += 1
        if self._tally.timed:
            sent = text.rindex(b'"payload":["') + 12
            self._tally.latencies_ms.append(1_000 * (time.time() - float(text[sent : text.index(b'"', sent)])))

    def connection_lost(self, _error: Exception | None) -> None:
        self._tally.open -= self.ready.done()
        self._tally.lost += 1
        if not self.ready.done():
            self.ready.set_exception(ConnectionError("closed"))


class Bench:
    """A Valkey, a gateway, and the clients."""

    def __init__(self, valkey: Valkey, gateway: subprocess.Popen[bytes], port: int) -> None:
        self.valkey = valkey
        self.process = psutil.Process(gateway.pid)
        self.port = port
        self.writer = AsyncRedis.from_url(valkey.url())
        self._clock = 0

    async def connect(self, users: list[str], tally: Tally, last_ids: dict[str, str] | None = None) -> list[BareClient]:
        """All of them, 200 at a time."""
        gate = asyncio.Semaphore(200)
        loop = asyncio.get_running_loop()

        async def one(user_id: str) -> BareClient:
            async with gate:
                last_id = (last_ids or {}).get(user_id, "")
                _, client = await loop.create_connection(
                    lambda: BareClient(user_id, tally, last_id), "127.0.0.1", self.port
                )
                await client.ready
                return client

        return await asyncio.gather(*(one(user_id) for user_id in users))

    async def write(self, users: list[str], previous: dict[str, str]) -> None:
        """One frame to each, in one pipeline."""
        self._clock += 1
        pipe = self.writer.pipeline(transaction=False)
        for user_id in users:
            key = keys.user_key("feed", user_id, "websocket")
            entry = f"{self._clock}-1"
            rest = (
                f'"notification_id":"{self._clock}","seq":{self._clock},"category":"like","accepted_at":0.0,'
                f'"granted_at":0.0,"payload":["{time.time():.6f}","{PAYLOAD}"]}}'
            )
            pipe.execute_command("XADD", key, "MAXLEN", "50", entry, "f", rest)
            pipe.execute_command("PUBLISH", key, f'{entry} {previous.get(user_id, "0-0")} {{"id":"{entry}",{rest}')
            previous[user_id] = entry
        await pipe.execute()

    def cpu_s(self) -> float:
        """The gateway's CPU time so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


async def until(condition: Any, timeout_s: float) -> bool:
    """Whether it came true in time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(0.005)
    return True


async def idle(bench: Bench, clients: int, seconds: float) -> dict[str, Any]:
    """Many clients to whom nothing is sent."""
    tally = Tally()
    before = bench.process.memory_info().rss
    begun_s = time.monotonic()
    opened = await bench.connect([f"idle-{n}" for n in range(clients)], tally)
    connect_s = time.monotonic() - begun_s
    after = bench.process.memory_info().rss
    cpu_before_s = bench.cpu_s()
    await asyncio.sleep(seconds)
    cpu = (bench.cpu_s() - cpu_before_s) / seconds
    result = {
        "clients": tally.open,
        "lost": tally.lost,
        "connects_per_s": round(clients / connect_s),
        "memory_per_client_kib": round((after - before) / clients / 1024, 1),
        "cpu_percent_idle": round(100 * cpu, 2),
    }
    for client in opened:
        client.transport.abort()
    await until(lambda: tally.open == 0, 10)
    return result


async def steady(bench: Bench, clients: list[BareClient], tally: Tally, rate: int, seconds: float) -> dict[str, Any]:
    """Frames at a steady rate, spread over all clients and over time."""
    users = [client.user_id for client in clients]
    previous = {client.user_id: client.last_id for client in clients if client.last_id}
    tally.frames, tally.disorder, tally.latencies_ms, tally.timed = 0, 0, [], True
    cpu_before_s, begun_s, sent, at = bench.cpu_s(), time.monotonic(), 0, 0
    while (elapsed_s := time.monotonic() - begun_s) < seconds:
        due = int(elapsed_s * rate) - sent
        if due > 0:
            batch = [users[(at + n) % len(users)] for n in range(min(due, len(users)))]
            at, sent = at + len(batch), sent + len(batch)
            await bench.write(batch, previous)
        await asyncio.sleep(0.002)
    complete = await until(lambda: tally.frames >= sent, 10)
    took_s = time.monotonic() - begun_s
    latencies = sorted(tally.latencies_ms)
    tally.timed = False
    return {
        "offered_per_s": rate,
        "frames": tally.frames,
        "missing": sent - tally.frames,
        "disorder": tally.disorder,
        "complete": complete,
        "frames_per_s": round(tally.frames / took_s),
        "p50_ms": round(statistics.median(latencies), 2),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)], 2),
        "gateway_cpu_percent": round(100 * (bench.cpu_s() - cpu_before_s) / took_s),
    }


async def most(bench: Bench, clients: list[BareClient], tally: Tally, seconds: float) -> dict[str, Any]:
    """As fast as the gateway goes: the next frames are written once the ones before the last have arrived."""
    users = [client.user_id for client in clients]
    previous = {client.user_id: client.last_id for client in clients if client.last_id}
    tally.frames, tally.disorder = 0, 0
    begun_s, sent = time.monotonic(), 0
    while time.monotonic() - begun_s < seconds:
        await bench.write(users, previous)
        sent += len(users)
        while tally.frames < sent - 4 * len(users):
            await asyncio.sleep(0.001)
    complete = await until(lambda: tally.frames >= sent, 10)
    took_s = time.monotonic() - begun_s
    return {"frames_per_s": round(tally.frames / took_s), "complete": complete, "disorder": tally.disorder}


async def storm(bench: Bench, clients: list[BareClient]) -> dict[str, Any]:
    """All clients are gone, 20 frames each are written, all return at once."""
    users = [client.user_id for client in clients]
    last_ids = {client.user_id: client.last_id for client in clients}
    for client in clients:
        client.transport.abort()
    previous = dict(last_ids)
    for _ in range(20):
        await bench.write(users, previous)
    tally = Tally()
    begun_s = time.monotonic()
    await bench.connect(users, tally, last_ids)
    complete = await until(lambda: tally.frames >= 20 * len(users), 30)
    return {
        "clients": len(users),
        "frames": tally.frames,
        "complete": complete,
        "disorder": tally.disorder,
        "all_caught_up_s": round(time.monotonic() - begun_s, 2),
    }


@contextlib.contextmanager
def servers() -> Iterator[Bench]:
    """A Valkey and a gateway of their own."""
    with tempfile.TemporaryDirectory() as directory, Valkey.start(Path(directory), aof=None) as valkey:
        port = free_port()
        environment = os.environ | {
            "NOTIFIER_REDIS_URL": valkey.url(),
            "NOTIFIER_SECRET": SECRET,
            "NOTIFIER_GATEWAY_PORT": str(port),
        }
        gateway = subprocess.Popen(
            [sys.executable, "-m", "notifier", "gateway"], env=environment, cwd=directory, stderr=subprocess.DEVNULL
        )
        try:
            with contextlib.closing(Redis.from_url(valkey.url())) as client:
                deadline_s = time.monotonic() + 20
                while not client.client_list(_type="pubsub") and time.monotonic() < deadline_s:
                    time.sleep(0.05)  # until it listens to Redis
                    _knock(port)
            yield Bench(valkey, gateway, port)
        finally:
            gateway.terminate()
            gateway.wait(30)


def _knock(port: int) -> bool:
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


async def measure(
    bench: Bench, idle_clients: int, clients: int, rates: list[int], seconds: float, idle_s: float
) -> dict[str, Any]:
    """Everything, one after the other."""
    result: dict[str, Any] = {"idle": await idle(bench, idle_clients, idle_s)}
    click.echo(f"idle      {result['idle']}")
    tally = Tally()
    opened = await bench.connect([f"user-{n}" for n in range(clients)], tally)
    result["clients"] = clients
    result["steady"] = []
    for rate in rates:
        result["steady"].append(await steady(bench, opened, tally, rate, seconds))
        click.echo(f"steady    {result['steady'][-1]}")
    result["most"] = await most(bench, opened, tally, seconds)
    click.echo(f"most      {result['most']}")
    result["storm"] = await storm(bench, opened)
    click.echo(f"storm     {result['storm']}")
    return result


def rows(quick: bool) -> list[Row]:
    """The gateway's lines of docs/performance.md."""
    allow_many_connections()
    command = "python -m benchmarks gateway"
    with servers() as bench:
        run = (
            measure(bench, 1_000, 300, [3_000], 2.0, 2.0)
            if quick
            else measure(bench, 5_000, 1_000, [10_000], 10.0, IDLE_S)
        )
        found = uvloop.run(run)
    idle_bar, rate_bar = ("", "") if quick else (">= 5000", ">= 10000")
    at, most_of = found["steady"][0], found["most"]
    missing = at["missing"] + at["disorder"] + most_of["disorder"] + found["storm"]["disorder"]
    return [
        row("gateway: idle clients of one process", found["idle"]["clients"], idle_bar, command, ratio=False),
        row("gateway: memory of an idle client, KiB", found["idle"]["memory_per_client_kib"], "", command, ratio=False),
        row("gateway: frames/s to many clients", most_of["frames_per_s"], rate_bar, command, ratio=False, **at),
        row(f"gateway: p99 at {at['offered_per_s']:,} frames/s, ms", at["p99_ms"], "", command, ratio=False),
        row("gateway: frames missing or out of order", missing, "<= 0", command),
    ]


@click.command()
@click.option("--idle", "idle_clients", default=5_000, show_default=True)
@click.option("--clients", default=1_000, show_default=True)
@click.option("--rate", "rates", multiple=True, type=int, default=(1_000, 5_000, 10_000), show_default=True)
@click.option("--seconds", default=10.0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
def main(idle_clients: int, clients: int, rates: tuple[int, ...], seconds: float, out: Path) -> None:
    """Measure one gateway process."""
    allow_many_connections()
    with servers() as bench:
        result = uvloop.run(measure(bench, idle_clients, clients, list(rates), seconds, IDLE_S))
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n")
    click.echo(f"written to {out}")


if __name__ == "__main__":
    main()
