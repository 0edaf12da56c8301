"""`notifier top` on real servers, a real gateway's /metrics, and a real terminal."""

from __future__ import annotations

import json
import os
import pty
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner

from notifier import runtime
from notifier.cli import main, top
from notifier.cli.top_figures import Figures, Look, figures, look, quantile
from notifier.cli.top_page import page, sparkline, text
from notifier.embedded.valkey import Valkey
from notifier.exposition import Server
from notifier.gateway import meters
from notifier.licence import Grant
from notifier.notification import Notification
from notifier.redis.keys import REPLAYED
from notifier.settings import Settings
from notifier.survey import Surveyor
from notifier.wire import Message
from tests.support import eventually, free_port


@pytest.fixture
def served(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The environment of a command that finds all servers, and the address of this process's metrics."""
    runtime.close()
    for name in ("broker_url", "redis_url", "limiter_redis_url", "database_url"):
        monkeypatch.setenv(f"NOTIFIER_{name.upper()}", str(getattr(settings, name)))
    server = Server(settings.model_copy(update={"metrics_port": free_port()}))
    yield f"http://127.0.0.1:{server.port}/metrics"
    server.stop()
    runtime.close()


def deliver(settings: Settings, count: int) -> None:
    """Accept and deliver so many in this process."""
    ledger = runtime.get(settings).ledger
    sent = [Notification.create(f"user-{number}", number) for number in range(count)]
    messages = [Message(n, a.accepted_us, a.epoch) for n, a in zip(sent, ledger.accept(sent), strict=True)]
    assert {reply.code for reply in ledger.deliver(messages, [Grant(1, 0)] * count)} == {"delivered"}


def test_what_has_happened_between_two_looks(settings: Settings, served: str) -> None:
    surveyor = Surveyor(settings, fresh_s=0.0)
    before = look(surveyor, [served])
    deliver(settings, 7)
    assert runtime.get(settings).limiter.acquire("anna").granted
    meters.CLIENTS.labels("websocket").set(0)

    def seen() -> Figures:
        found = figures(before, look(surveyor, [served]))
        assert found.totals["delivered"] == 7
        assert found.rates["delivered"] > 0
        assert found.latency_s["p99"] is not None
        assert sum(found.grants.values()) > 0
        return found

    found = eventually(seen, timeout_s=60)
    surveyor.close()
    assert found.servers == dict.fromkeys(("state", "limiter", "database", "broker"), "ok")
    assert found.scraped == {served: "ok"}
    for width in (60, 100, 200):
        shown = text(page(found, (1.0, 2.0), "notifier top", width), width)
        assert max(map(len, shown.splitlines())) <= width
        for word in ("accepted", "delivered", "p50", "p99", "queue normal", "waiting", "last replay", "granted, ",
                     "state Redis", "PostgreSQL", "clients, websocket"):  # fmt: skip
            assert word in shown, (width, word, shown)


def test_once_as_json_and_as_text(settings: Settings, served: str) -> None:
    deliver(settings, 3)
    parts = runtime.get(settings)
    parts.client.set(REPLAYED, parts.ledger.now_us() + 600_000_000)  # as a worker notes it; not late on a slow machine
    arguments = ["top", "--once", "--interval", "0.2", "--url", served]
    done = CliRunner().invoke(main, [*arguments, "--json"])
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["totals"]["accepted"], found["totals"]["delivered"], found["waiting"]) == (3, 3, 0)
    assert found["rows"]["waiting"] == 0
    assert found["rates"]["delivered"] == 0
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "delivered" in done.stdout and "\x1b" not in done.stdout


def test_once_says_by_its_exit_code_what_status_says(
    settings: Settings, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFIER_LIMITER_REDIS_URL", f"redis://:hunter2@127.0.0.1:{free_port()}/0")
    top_said = CliRunner().invoke(main, ["top", "--once", "--interval", "0.2", "--url", served, "--json"])
    status_said = CliRunner().invoke(main, ["status", "--json"])
    assert (top_said.exit_code, status_said.exit_code) == (1, 1)
    assert json.loads(top_said.stdout)["servers"]["limiter"] != "ok"
    degraded = json.loads(status_said.stdout)["degraded"]
    assert len(degraded) == 2  # and no replay has run
    assert top_said.stderr.splitlines() == [f"degraded: {line}" for line in degraded]


def test_what_is_away_is_said_in_words(settings: Settings, served: str, fresh_valkey: Callable[..., Valkey]) -> None:
    limiter = fresh_valkey()
    nowhere = f"http://127.0.0.1:{free_port()}/metrics"
    limiter.kill()
    surveyor = Surveyor(settings.model_copy(update={"limiter_redis_url": limiter.url()}), fresh_s=0.0)
    first = look(surveyor, [nowhere])
    found = figures(first, look(surveyor, [nowhere]))
    surveyor.close()
    assert found.servers["limiter"] != "ok"
    assert found.latency_s == {"p50": None, "p99": None}
    shown = text(page(found, (), "", 100), 100)
    assert "limiter Redis  away: " in shown
    assert f"{nowhere}: " in shown


@pytest.mark.parametrize(
    "said",
    [
        b"220 mail.example.com ESMTP\r\n",
        b'HTTP/1.0 200 OK\r\n\r\n\\{, =a{.=,# ,} ",\\"T',
        b"HTTP/1.0 200 OK\r\n\r\n<html>",
    ],
)
def test_what_answers_and_is_no_metrics_is_said_to_be_none(settings: Settings, served: str, said: bytes) -> None:
    class Stranger(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            self.wfile.write(said)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Stranger) as stranger, closing(Surveyor(settings)) as asked:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        elsewhere = f"http://127.0.0.1:{stranger.server_address[1]}/metrics"
        found = look(asked, [elsewhere, served])
        stranger.shutdown()
    assert found.problems[served] == "ok"
    assert found.problems[elsewhere] not in ("ok", "")


def test_an_address_that_cannot_be_one_is_refused(served: str) -> None:
    done = CliRunner().invoke(main, ["top", "--once", "--url", "file:///etc/passwd"])
    assert done.exit_code == 1
    assert "must begin with http" in done.output


def test_on_a_terminal_q_ends_it(served: str) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    command = [sys.executable, "-m", "notifier", "top", "--interval", "0.2", "--url", served]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""

    def read() -> bool:
        nonlocal shown
        shown += os.read(ours, 65_536)
        return b"PostgreSQL" in shown

    eventually(read, timeout_s=60)
    os.write(ours, b"q")
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()
        os.close(ours)


def test_a_look_that_fails_ends_it(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Look:
        raise LookupError("a fault of ours")

    monkeypatch.setattr(top, "look", fails)
    with closing(top.Watch(settings, (), 0.2)) as watch, pytest.raises(LookupError, match="a fault of ours"):
        top._live(watch, 0.2)


def test_quantiles_are_those_of_prometheus() -> None:
    buckets = {"0.1": 50.0, "0.2": 90.0, "1.0": 100.0, "+Inf": 100.0}
    assert quantile(0.5, buckets) == pytest.approx(0.1)
    assert quantile(0.7, buckets) == pytest.approx(0.15)
    assert quantile(0.99, buckets) == pytest.approx(0.92)
    assert quantile(0.99, {"0.1": 0.0, "+Inf": 5.0}) == 0.1
    assert quantile(0.5, {"0.1": 0.0, "+Inf": 0.0}) is None
    assert quantile(0.5, {}) is None


def test_a_sparkline_goes_from_nothing_to_the_most() -> None:
    assert sparkline([0, 5, 10]) == "▁▅█"
    assert sparkline([0, 0]) == "▁▁"
