"""The demo: a whole installation on this machine under a noisy user's bursts, and its books at the end."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import celery.app.amqp  # noqa: F401  the producer imports these at its first call: 0.2 s that would count as latency
import kombu.transport.redis  # noqa: F401

from notifier import metrics_dir, producer, runtime
from notifier.deadletters.migrate import upgrade
from notifier.embedded.server import Server
from notifier.gateway.auth import token_for
from notifier.lab import account, stores
from notifier.lab.controls import Controls, Switch
from notifier.lab.member import Member
from notifier.lab.servers import Servers
from notifier.lab.sockets import Sockets
from notifier.lab.stack import Stack
from notifier.lab.traffic import Traffic
from notifier.licence import Counts
from notifier.settings import Settings, raw_values

NOISY = "noisy"
QUIET = tuple(f"quiet-{number:02}" for number in range(1, 21))
WORKERS, CONCURRENCY = 2, 2
DRAIN_S = 10.0
ARRIVE_S = 3.0  # what is booked as delivered is at the sockets within this
LOOK_S, REPORT_S = 0.1, 0.5
DAY_S = 86_400.0


@dataclass(frozen=True)
class Progress:
    """A look at a running demo."""

    step: str
    elapsed_s: float = 0.0
    accepted: int = 0
    delivered: int = 0
    deferred: int = 0
    replayed: int = 0
    waiting: int = 0
    quiet_p50_ms: float = 0.0
    quiet_p99_ms: float = 0.0
    grants: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """The books. delivered, lost, duplicates and disorder are counted at the sockets against the senders' own list."""

    accepted: int
    delivered: int
    digested: int
    expired: int
    dropped: int
    duplicate: int
    parked: int
    waiting: int
    in_flight: int
    lost: int
    duplicates: int
    disorder: int
    limit_excess: float
    quiet_p50_ms: float
    quiet_p99_ms: float
    noisy_delivered: int
    noisy_deferred: int
    replayed: int
    grants: dict[str, int]

    @property
    def ok(self) -> bool:
        """Nothing lost, nothing twice, in order, within the limits."""
        return not (self.lost or self.duplicates or self.disorder or self.limit_excess)


Say = Callable[[Progress], None]


@contextlib.contextmanager
def installed(say: Say, check: Callable[[], None] = lambda: None) -> Iterator[Demo]:
    """Servers, workers, beat and gateway of the demo's own; nothing is left of them behind. Raises NotifierError.

    Limits and the like come from the environment. `check` is called all the time, and ends it by raising.
    """
    home = Path(tempfile.mkdtemp(prefix="notifier-demo-"))
    servers = Servers()
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        stack.callback(servers.remove)
        # Of the settings only the directory counts as named, so that every server is started here.
        servers.start(Settings.model_construct(data_dir=home), say=lambda text: say(Progress(f"starting {text}")))
        check()
        named = servers.urls | {"NOTIFIER_SECRET": secrets.token_urlsafe(48), "NOTIFIER_LIVE_PAGE": "true"}
        settings = Settings(**{name.removeprefix("NOTIFIER_").lower(): value for name, value in named.items()})
        say(Progress("migrating the database"))
        upgrade(settings.database_url)
        runtime.close()
        runtime.get(settings)
        stack.callback(runtime.close)
        demo = Demo(home, settings, raw_values() | named, servers, check)
        stack.callback(demo.stop)
        say(Progress("starting workers, beat and gateway"))
        demo.start()
        yield demo


class Demo:
    """A running installation, and the traffic through it."""

    def __init__(
        self, home: Path, settings: Settings, variables: dict[str, str], servers: Servers, check: Callable[[], None]
    ) -> None:
        self._settings, self._check = settings, check
        self._metrics_dir = home / "metrics"
        self._metrics_dir.mkdir()
        self._stack = Stack(
            variables | {"PROMETHEUS_MULTIPROC_DIR": str(self._metrics_dir)},
            home / "log",
            workers=WORKERS,
            concurrency=CONCURRENCY,
            cwd=home,
        )
        self._limit = settings.user_limit_of("websocket")
        self._traffic = Traffic(producer.notify, NOISY, QUIET, self._limit)
        self._waiting_since_us: dict[str, dict[int, int]] = {user_id: {} for user_id in (NOISY, *QUIET)}
        self._began_s = 0.0
        limiter, postgres = servers.started["limiter"], servers.started["postgres"]
        switches = {"limiter": _switch(limiter, limiter.restart), "postgres": _switch(postgres, postgres.restart)}
        switches |= {worker.name: _switch(worker, worker.start) for worker in self._stack.workers}
        self._controls = Controls(settings.redis_url, switches)

    def start(self) -> None:
        """Start the processes and wait until they work."""
        self._stack.start(while_waiting=self._check)

    @property
    def page(self) -> str:
        """The live page's address, with the token that opens it."""
        return f"{self._stack.gateway_url}/#token={token_for(self._settings, QUIET[0], DAY_S, live=True)}"

    def run(self, seconds: float, say: Say) -> Result:
        """Send for `seconds`, drain, stop those who deliver, count."""
        with self._sockets() as sockets:
            self._began_s = time.monotonic()
            self._traffic.start()
            try:
                self._look_for(seconds, lambda: False, sockets, "sending", say)
            finally:
                self._traffic.stop()
            self._look_for(DRAIN_S, lambda: self._counts().in_flight == 0, sockets, "draining", say)
            # With nobody left to deliver, the stores and the sockets can be compared to the last one.
            say(self._progress("stopping beat and workers", sockets))
            for member in self._deliverers:
                member.terminate()
            for member in self._deliverers:
                member.wait(DRAIN_S)
            booked = self._counts().delivered
            self._look_for(ARRIVE_S, lambda: len(sockets.frames) >= booked, sockets, "counting", say)
            return self._result(sockets)

    def go_on(self, tell: Callable[[], None]) -> None:
        """Deliver again, tell so, and end at KeyboardInterrupt."""
        with contextlib.suppress(KeyboardInterrupt):
            for member in self._deliverers:
                member.start()
            tell()
            while True:
                self._check()
                self._controls.tick()
                time.sleep(LOOK_S)

    def stop(self) -> None:
        """End all processes."""
        self._controls.close()
        self._stack.stop()

    @property
    def _deliverers(self) -> list[Member]:
        return [self._stack.members["beat"], *self._stack.workers]

    @contextlib.contextmanager
    def _sockets(self) -> Iterator[Sockets]:
        tokens = {user_id: token_for(self._settings, user_id, DAY_S) for user_id in (NOISY, *QUIET)}
        sockets = Sockets(self._stack.gateway_url, tokens)
        try:
            sockets.start()
            yield sockets
        finally:
            sockets.stop()

    def _look_for(self, seconds: float, done: Callable[[], bool], sockets: Sockets, step: str, say: Say) -> None:
        """Look and report until done, for at most `seconds`."""
        until_s = time.monotonic() + seconds
        report_s = 0.0
        while not done() and time.monotonic() < until_s:
            self._check()
            seqs, now_us = stores.waiting_now(runtime.get().client, list(self._waiting_since_us))
            for user_id, found in seqs.items():
                since = self._waiting_since_us[user_id]
                since |= {seq: now_us for seq in found if seq not in since}
            if time.monotonic() >= report_s:  # adding up the books keeps state Redis busy, so not at every look
                say(self._progress(step, sockets))
                report_s = time.monotonic() + REPORT_S
            self._controls.tick()
            time.sleep(min(LOOK_S, max(0.0, until_s - time.monotonic())))

    def _progress(self, step: str, sockets: Sockets) -> Progress:
        counts, quiet_ms = self._counts(), self._quiet_ms(sockets)
        return Progress(
            step=step,
            elapsed_s=time.monotonic() - self._began_s,
            accepted=len(self._traffic.sent),
            delivered=len(sockets.frames),
            deferred=counts.deferrals,
            replayed=counts.replayed,
            waiting=counts.waiting,
            quiet_p50_ms=account.percentile(quiet_ms, 0.5),
            quiet_p99_ms=account.percentile(quiet_ms, 0.99),
            grants=metrics_dir.grants(self._metrics_dir),
        )

    def _counts(self) -> Counts:
        return runtime.get().ledger.counts()

    def _quiet_ms(self, sockets: Sockets) -> list[float]:
        frames = list(sockets.frames)
        return account.latencies_ms([s for s in list(self._traffic.sent) if s.identity.user_id != NOISY], frames)

    def _result(self, sockets: Sockets) -> Result:
        parts, sent, frames = runtime.get(), self._traffic.sent, list(sockets.frames)
        seen = {frame.identity for frame in frames}
        held = stores.whereabouts(parts.client, parts.store, [s.identity for s in sent if s.identity not in seen])
        places: Counter[str] = Counter(held.values())
        of_user = account.by_user(frames)
        quiet_ms = self._quiet_ms(sockets)
        loans = 0 if self._settings.local_bucket.off else WORKERS * CONCURRENCY
        excess = [
            account.limit_excess([f.granted_us for f in of_one], self._limit, loans) for of_one in of_user.values()
        ]
        counts = self._counts()
        named: dict[str, Any] = {
            name: places[name] for name in ("digested", "expired", "dropped", "parked", "waiting", "in_flight")
        }
        return Result(
            **named,
            accepted=len(sent),
            delivered=len(seen),
            duplicate=counts.duplicate,
            lost=len(account.lost(sent, frames, held)),
            duplicates=account.duplicates(frames),
            disorder=sum(
                account.disorder(of_user.get(user_id, []), since) for user_id, since in self._waiting_since_us.items()
            ),
            limit_excess=round(max(excess, default=0.0), 6),
            quiet_p50_ms=round(account.percentile(quiet_ms, 0.5), 3),
            quiet_p99_ms=round(account.percentile(quiet_ms, 0.99), 3),
            noisy_delivered=len(of_user.get(NOISY, [])),
            noisy_deferred=stores.shard_count(parts.client, NOISY, "deferrals"),
            replayed=counts.replayed,
            grants=metrics_dir.grants(self._metrics_dir),
        )


def _switch(what: Server | Member, start: Callable[[], object]) -> Switch:
    return Switch(what.kill, start, lambda: what.running)
