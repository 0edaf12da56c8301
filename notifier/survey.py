"""Asks every server how things stand: at most for a moment, whichever of them is away or frozen.

For `/metrics`, `notifier status`, `notifier top` and whoever else wants to know. Each question runs in a thread of its
own; who does not answer in time is called away, and is asked again when its answer, or its timeout, has come. What was
answered counts for a second, and for ten times as long as it took: nobody is kept busy by being watched.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from notifier.deadletters.store import Ages
from notifier.errors import NotifierError
from notifier.licence import Counts
from notifier.redis.keys import REPLAYED
from notifier.redis.reach import reach_broker, reach_redis
from notifier.redis.state import call
from notifier.runtime import Runtime
from notifier.settings import Settings

NAMES = {"state": "state Redis", "limiter": "limiter Redis", "database": "PostgreSQL", "broker": "broker"}  # for people
AWAY = {  # what it means that it is away
    "state": "nothing is accepted into the ledger or delivered until it is back",
    "limiter": "workers go on with their local buckets for a short grace, then defer everything",
    "database": "what is denied waits in Redis until it is back, and no further than NOTIFIER_MAX_DEFERRED",
    "broker": "the ledger keeps what is sent; it is published when the broker is back",
}
SERVERS = tuple(NAMES)
TIMEOUT_S = 1.0
FRESH_S = 1.0
REPLAY_IS_LATE_S = 10.0
OK = "ok"
NO_ANSWER = "no answer in time"


class Books(NamedTuple):
    """What state Redis knew at `at_s` (time.monotonic). None: not for an hour or longer."""

    at_s: float
    counts: Counts
    queue_age_s: dict[str, float | None]  # how long the last probe took through each queue
    replayed_s_ago: float | None  # since the last replay


class Survey(NamedTuple):
    """`servers` has "ok" or what is wrong for each that was asked: it is away, or refuses what it was asked.

    What is not known is None: also books and rows that were not told in time.
    """

    servers: dict[str, str]
    books: Books | None
    rows: Ages | None


class Surveyor:
    """Asks the servers of `settings`, with connections of its own. Nothing is connected before the first look."""

    def __init__(
        self,
        settings: Settings,
        servers: tuple[str, ...] = SERVERS,
        *,
        fresh_s: float = FRESH_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`fresh_s`: for so long an answer counts at least. `timeout_s`: how long one look may take."""
        self._timeout_s = timeout_s
        self._runtime = Runtime(settings)
        self._runtime.ledger, self._runtime.store, self._runtime.sweep  # noqa: B018  made here, not by two threads
        questions: dict[str, Callable[[], Any]] = {
            "state": self._runtime.ledger.now_us,
            "limiter": lambda: reach_redis("limiter Redis", settings.limiter_url),
            "database": self._runtime.store.fingerprint,
            "broker": lambda: reach_broker(settings.broker_url),
        }
        self._servers = {name: _Question(questions[name], fresh_s) for name in servers}
        self._books = _Question(self._ask_books, fresh_s)
        self._rows = _Question(self._runtime.store.ages, fresh_s) if "database" in servers else None

    def look(self) -> Survey:
        """Ends within about the timeout. Raises nothing because a server is away. Safe between threads."""
        until_s = time.monotonic() + self._timeout_s
        asked = [*self._servers.values(), self._books, *([self._rows] if self._rows else [])]
        for question in asked:
            question.ask()
        for question in asked:
            question.wait(until_s)
        problems = {name: question.problem for name, question in self._servers.items()}
        for name, told in (("state", self._books), ("database", self._rows)):
            if told and problems.get(name) == OK and told.problem != NO_ANSWER:
                problems[name] = told.problem
        return Survey(
            servers=problems,
            books=self._books.answer if problems.get("state", OK) == OK else None,
            rows=self._rows.answer if self._rows and problems["database"] == OK else None,
        )

    def close(self) -> None:
        """Let go of connections."""
        self._runtime.close()

    def _ask_books(self) -> Books:
        runtime = self._runtime
        counts = runtime.ledger.counts()
        ages = runtime.sweep.queue_ages_s()
        replayed_us: Any = call(lambda: runtime.client.get(REPLAYED))
        since_s = None if replayed_us is None else max(0.0, (runtime.ledger.now_us() - int(replayed_us)) / 1e6)
        return Books(time.monotonic(), counts, {str(queue): age_s for queue, age_s in ages.items()}, since_s)


class _Question:
    """One that is asked again and again, never twice at once."""

    def __init__(self, question: Callable[[], Any], fresh_s: float) -> None:
        self._question, self._fresh_s = question, fresh_s
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._asking = False
        self._due_s = 0.0
        self._problem = NO_ANSWER
        self.answer: Any = None  # the last there was; None where the last time failed

    @property
    def problem(self) -> str:
        """OK, or what is wrong."""
        return self._problem if self._answered.is_set() else NO_ANSWER

    def ask(self) -> None:
        """Ask, where no answer is fresh and none is on its way."""
        with self._lock:
            if self._asking or time.monotonic() < self._due_s:
                return
            self._asking = True
            self._answered.clear()
        threading.Thread(target=self._run, name="notifier-survey", daemon=True).start()

    def wait(self, until_s: float) -> None:
        """Until it is answered, or it is `until_s` by time.monotonic."""
        self._answered.wait(max(0.0, until_s - time.monotonic()))

    def _run(self) -> None:
        began_s = time.monotonic()
        try:
            self.answer, self._problem = self._question(), OK
        except Exception as error:  # whatever its client raises; only our own texts are known to hold no password
            self.answer = None
            known = isinstance(error, NotifierError)
            self._problem = str(error) if known else f"cannot be used ({type(error).__name__})"
        now_s = time.monotonic()
        self._due_s = now_s + max(self._fresh_s, 10 * (now_s - began_s) if self._problem == OK else 0)
        with self._lock:
            self._asking = False
            self._answered.set()
