"""The torture: a whole installation under steady load while everything in it is killed, frozen, cut off and restarted.

In the end everything is healed, what waits may drain, and what arrived is compared with the senders' own list: a ledger
that was rolled back would balance with itself.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Literal
from urllib.parse import urlsplit

from redis.exceptions import RedisError

from notifier.deadletters.migrate import upgrade
from notifier.embedded.postgres import Postgres
from notifier.embedded.process import end, spawn
from notifier.embedded.rabbitmq import RabbitMQ
from notifier.embedded.valkey import Valkey
from notifier.errors import NotifierError, Unavailable
from notifier.gateway.auth import make_token
from notifier.lab import account, stores, torture_account, torture_sender
from notifier.lab.proxy import Proxy
from notifier.lab.sockets import CHANNEL, Sockets
from notifier.lab.stack import Stack, environment
from notifier.lab.torture_faults import Faults, Guarded, Undo
from notifier.lab.torture_plan import plan
from notifier.lab.torture_repeater import Repeater
from notifier.lab.torture_sender import USERS
from notifier.licence import Counts
from notifier.notification import Identity
from notifier.redis import keys
from notifier.runtime import Runtime
from notifier.settings import Settings, raw_values

Broker = Literal["redis", "rabbitmq"]
WORKERS, CONCURRENCY, SENDERS = 2, 2, 2
LOOK_S = 0.2
MOST_DRAIN_S = 1_800.0
NO_PROGRESS_S = 60.0  # longer than any claim, lease or timeout of the protocol lasts
ARRIVE_S = 15.0  # what is booked as delivered is at the sockets within this
STOP_S = 20.0
FEED_LENGTH = 10_000  # no client may miss an entry because its feed was trimmed while it could not connect


@dataclass(frozen=True)
class Result:
    """The books: what the senders were told is accepted, against what arrived at the sockets."""

    seed: int
    faults: int
    accepted: int
    delivered: int
    waiting: int
    parked: int
    lost: int
    duplicates: int
    disorder: int
    limit_excess: float

    @property
    def ok(self) -> bool:
        """Nothing lost, nothing twice, in order, within the limits."""
        return not (self.lost or self.duplicates or self.disorder or self.limit_excess)


Say = Callable[[str], None]


def run(seconds: float, seed: int, broker: Broker, say: Say, keep: Path | None = None) -> Result:
    """Torture for `seconds`, drain, count, and leave nothing behind but `keep` (logs, lists). Raises NotifierError.

    Limits and the like come from the environment; servers are always the torture's own.
    """
    home = keep.absolute() if keep else Path(tempfile.mkdtemp(prefix="notifier-torture-"))
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise NotifierError(f"{home} cannot be made: {error.strerror}") from error
    with contextlib.ExitStack() as stack:
        if not keep:
            stack.callback(shutil.rmtree, home, ignore_errors=True)
        return _Torture(home, broker, seed, stack, say).run(seconds)


class _Torture:
    def __init__(self, home: Path, broker: Broker, seed: int, stack: contextlib.ExitStack, say: Say) -> None:
        self._home, self._seed = home, seed
        self._began_s = time.monotonic()
        self._say_it = say
        self._servers = self._start_servers(broker, stack)
        direct = self._urls(broker, {name: guarded.server.port for name, guarded in self._servers.items()})
        proxied = self._urls(broker, {name: guarded.proxy.port for name, guarded in self._servers.items()})
        named = {"NOTIFIER_SECRET": secrets.token_urlsafe(48), "NOTIFIER_FEED_LENGTH": str(FEED_LENGTH)}
        given = {name: value for name, value in raw_values().items() if not name.endswith(("_URL", "_SECRET"))}
        self._variables = named | given | proxied
        values = {name.removeprefix("NOTIFIER_").lower(): value for name, value in (named | given | direct).items()}
        self._settings = Settings(**{name: value for name, value in values.items() if "__" not in name})
        upgrade(self._settings.database_url)
        self._runtime = Runtime(self._settings)
        stack.callback(self._runtime.close)
        log_dir = home / "log"
        self._stack = Stack(self._variables, log_dir, workers=WORKERS, concurrency=CONCURRENCY, cwd=home)
        self._faults = Faults(self._servers, self._stack, Repeater(self._settings.broker_url), CONCURRENCY, seed)
        self._limit = self._settings.user_limit_of(CHANNEL)
        self._waiting_since_us: dict[str, dict[int, int]] = {user_id: {} for user_id in USERS}
        self._done = 0
        self._stuck = False

    def _say(self, text: str) -> None:
        self._say_it(f"{time.monotonic() - self._began_s:7.1f} s  {text}")

    def _start_servers(self, broker: Broker, stack: contextlib.ExitStack) -> dict[str, Guarded]:
        """AOF always, fsync on: what a server has confirmed must survive its kill -9."""
        self._say("starting Valkey, Valkey, PostgreSQL" + ", RabbitMQ" * (broker == "rabbitmq"))
        database = Postgres.start(self._home / "postgres")
        stack.callback(database.remove)
        found = {
            "state": Valkey.start(self._home / "state", aof="always"),
            "limiter": Valkey.start(self._home / "limiter", aof="always"),
            "postgres": database,
        }
        if broker == "rabbitmq":
            found["rabbitmq"] = RabbitMQ.start(self._home / "rabbitmq")
        guarded = {}
        for name, server in found.items():
            stack.callback(server.stop)
            guarded[name] = Guarded(server, Proxy(server.port))
            stack.callback(guarded[name].proxy.close)
        return guarded

    def _urls(self, broker: Broker, ports: dict[str, int]) -> dict[str, str]:
        def moved(url: str, port: int) -> str:
            parts = urlsplit(url)
            return parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{port}")).geturl()

        state, limiter = self._servers["state"].server, self._servers["limiter"].server
        assert isinstance(state, Valkey)
        assert isinstance(limiter, Valkey)
        urls = {
            "NOTIFIER_REDIS_URL": moved(state.url(0), ports["state"]),
            "NOTIFIER_BROKER_URL": moved(state.url(1), ports["state"]),
            "NOTIFIER_LIMITER_REDIS_URL": moved(limiter.url(), ports["limiter"]),
        }
        for name, variable in (("postgres", "NOTIFIER_DATABASE_URL"), ("rabbitmq", "NOTIFIER_BROKER_URL")):
            if name in self._servers:
                server = self._servers[name].server
                assert isinstance(server, (Postgres, RabbitMQ))
                urls[variable] = moved(server.url(), ports[name])
        return urls

    def run(self, seconds: float) -> Result:
        """Start, torture, heal, drain, count."""
        try:
            self._say("starting workers, beat and gateway")
            self._stack.start()
            with self._sockets() as sockets:
                with self._senders(seconds) as senders:
                    self._torture(seconds)
                    self._say("healed; waiting for the senders to get rid of what was refused")
                    self._wait(lambda: all(s.poll() is not None for s in senders), 120.0)
                self._drain(sockets)
                return self._result(sockets)
        finally:
            self._stack.stop()

    @contextlib.contextmanager
    def _sockets(self) -> Iterator[Sockets]:
        assert self._settings.secret
        secret = self._settings.secret.get_secret_value()
        sockets = Sockets(self._stack.gateway_url, {user_id: make_token(secret, user_id, 604_800) for user_id in USERS})
        try:
            sockets.start()
            yield sockets
        finally:
            sockets.stop()

    @contextlib.contextmanager
    def _senders(self, seconds: float) -> Iterator[list[Popen[bytes]]]:
        processes = []
        for number, listed in enumerate(self._lists()):
            listed.touch()
            arguments = [str(self._seed), str(number), str(seconds), str(listed)]
            command = [sys.executable, "-P", "-m", torture_sender.__name__, *arguments]
            env = environment(self._variables)
            processes.append(spawn(command, log=self._home / f"sender-{number}.log", env=env, cwd=self._home))
        try:
            yield processes
        finally:
            for process in processes:
                end(process, signal.SIGTERM, 2.0)

    def _lists(self) -> list[Path]:
        return [self._home / f"accepted-{number}.jsonl" for number in range(SENDERS)]

    # ---- torture

    def _torture(self, seconds: float) -> None:
        """Faults as planned, and their ends, in the order of time; then everything is healed."""
        began_s, order = time.monotonic(), itertools.count()
        due: list[tuple[float, int, str, Undo]] = []
        broker = "rabbitmq" if "rabbitmq" in self._servers else "state"
        faults = plan(self._seed, seconds, [*self._stack.members], [*self._servers], broker)
        while faults or due or time.monotonic() < began_s + seconds:
            now_s = time.monotonic() - began_s
            if due and (due[0][0] <= now_s or now_s > seconds):
                _, _, text, undo = heapq.heappop(due)
                self._say(f"  end of: {text}")
                undo()
            elif faults and faults[0].at_s <= now_s:
                fault = faults.pop(0)
                self._say(str(fault))
                undo_it = self._faults.do(fault)
                self._done += 1
                if undo_it:
                    heapq.heappush(due, (now_s + fault.for_s, next(order), str(fault), undo_it))
            else:
                self._look()
                time.sleep(LOOK_S / 4)

    def _look(self) -> None:
        """What a supervisor does, and what an observer sees."""
        for member in self._stack.members.values():
            if member.name not in self._faults.down:
                member.tend(self._say)
        for name, (server, _) in self._servers.items():
            if name not in self._faults.down and not server.running:
                self._say(f"{name} has died by itself and is started again")
                server.restart()
        with contextlib.suppress(RedisError, OSError):
            seqs, now_us = stores.waiting_now(self._runtime.client, list(USERS))
            for user_id, found in seqs.items():
                since = self._waiting_since_us[user_id]
                since |= {seq: now_us for seq in found if seq not in since}

    def _wait(self, done: Callable[[], bool], timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > until_s:
                return False
            self._look()
            time.sleep(LOOK_S)
        return True

    def _drain(self, sockets: Sockets) -> None:
        """Until nothing is on its way any more, or nothing moves."""
        last: tuple[int, ...] = ()
        moved_s = time.monotonic()

        def over() -> bool:
            nonlocal last, moved_s
            try:
                counts = self._counts()
            except Unavailable:
                return False
            state = (counts.in_flight, counts.waiting, counts.deferred)
            if last != (now := (*state, len(sockets.frames))):
                last, moved_s = now, time.monotonic()
            self._stuck = time.monotonic() - moved_s > NO_PROGRESS_S
            return not any(state) or self._stuck

        self._say("draining")
        self._wait(over, MOST_DRAIN_S)
        self._say(f"drained: in flight {self._counts().in_flight}, waiting {self._counts().waiting}")
        # With nobody left to deliver, stores and sockets can be compared to the last one.
        senders = [self._stack.members["beat"], *self._stack.workers]
        for member in senders:
            member.terminate()
        for member in senders:
            member.wait(STOP_S)
        delivered = self._counts().delivered
        until_s = time.monotonic() + ARRIVE_S
        while len(sockets.frames) < delivered and time.monotonic() < until_s:
            time.sleep(LOOK_S)

    def _counts(self) -> Counts:
        return self._runtime.ledger.counts()

    # ---- the books

    def _result(self, sockets: Sockets) -> Result:
        sent, critical = torture_sender.read(self._lists())
        frames = list(sockets.frames)
        seen = {frame.identity for frame in frames}
        held = stores.whereabouts(
            self._runtime.client, self._runtime.store, [s.identity for s in sent if s.identity not in seen]
        )
        places = Counter(held.values())
        moves = {"in_flight", "waiting"} if self._stuck else set()  # held, but nobody will ever deliver them
        lost = account.lost(sent, frames, {i: place for i, place in held.items() if place not in moves})
        for identity in lost[:20]:
            self._say(f"lost: {identity} ({held.get(identity) or 'arrived with another payload'})")
        of_user = account.by_user(frames)
        parked = self._parked_seqs(i for i, place in held.items() if place == "parked")
        self._balance()
        return Result(
            seed=self._seed,
            faults=self._done,
            accepted=len(sent),
            delivered=len(seen & {s.identity for s in sent}),
            waiting=places["waiting"],
            parked=places["parked"],
            lost=len(lost),
            duplicates=account.duplicates(frames),
            disorder=sum(
                torture_account.disorder(of_user.get(user_id, []), since, critical, parked.get(user_id, set()))
                for user_id, since in self._waiting_since_us.items()
            ),
            limit_excess=self._excess(of_user, critical),
        )

    def _excess(self, of_user: dict[str, list[account.Frame]], critical: set[Identity]) -> float:
        """In the worst window of any user. Critical ones pass the limit by promise."""
        bucket = self._settings.local_bucket
        rate = 0.0 if bucket.off or self._limit.off else min(bucket.rate, self._limit.rate)
        processes = WORKERS * CONCURRENCY
        allowances = self._faults.allowances(processes * rate, self._settings.grace_seconds)
        excess = [
            torture_account.limit_excess(
                [f.granted_us for f in frames if f.identity not in critical], self._limit, processes, allowances
            )
            for frames in of_user.values()
        ]
        return round(max(excess, default=0.0), 3)

    def _parked_seqs(self, identities: Iterator[Identity]) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for identity in identities:
            key = f"{keys.prefix_of(identity.user_id)}ledger"
            entry = self._runtime.client.hget(key, keys.identity_part(identity))
            if isinstance(entry, bytes):
                found.setdefault(identity.user_id, set()).add(int(entry.split()[4]))
        return found

    def _balance(self) -> None:
        c = self._counts()
        ends = c.delivered + c.digested + c.expired + c.dropped + c.duplicate + c.parked
        difference = c.accepted - ends - c.waiting - c.in_flight
        if difference:
            self._say(f"the ledger's own books do not balance: {difference} more accepted than accounted for ({c})")
