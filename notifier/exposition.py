"""What a scrape finds: what the processes of this host count (metrics.py), and how the whole installation stands.

The latter is asked of the servers when somebody scrapes, and is the same at every process that is scraped: take the
maximum over instances, never the sum.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from notifier import metrics, metrics_dir
from notifier.deadletters.store import Ages
from notifier.settings import FIELD_OF, Settings
from notifier.survey import OK, SERVERS, Books, Survey, Surveyor

BOOKED = (
    "accepted",
    "delivered",
    "digested",
    "expired",
    "dropped",
    "duplicate",
    "deferrals",
    "replayed",
    "republished",
)


class Exposition:
    """A collector for prometheus_client. Never raises: what cannot be read is missing, and `notifier_up` says why."""

    def __init__(self, settings: Settings, *, only_named: bool = False) -> None:
        """`only_named`: do not ask servers that the settings leave at their default; state Redis always is asked."""
        named = settings.model_fields_set
        servers = tuple(name for name in SERVERS if not only_named or name == "state" or FIELD_OF[name] in named)
        self._surveyor = Surveyor(settings, servers)

    def collect(self) -> Iterator[Metric]:
        """prometheus_client's contract."""
        try:
            yield from metrics_dir.collect()
        except Exception as error:  # a file that is being made, a full disk
            metrics.degraded("metrics_dir", type(error).__name__)
        yield from families(self._surveyor.look())

    @property
    def registry(self) -> CollectorRegistry:
        """A registry with nothing else in it."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry

    def close(self) -> None:
        """Let go of connections."""
        self._surveyor.close()


def families(survey: Survey) -> Iterator[Metric]:
    """A survey as metrics. Each name is there, whatever is known, so that a query never meets a name nobody knows."""
    up = {name: float(problem == OK) for name, problem in survey.servers.items()}
    yield _gauges("notifier_up", "Whether a server can be used.", "server", up)
    yield from _of_books(survey.books)
    yield from _of_rows(survey.rows)


def _of_books(books: Books | None) -> Iterator[Metric]:
    counts = books.counts if books else None
    booked = CounterMetricFamily(
        "notifier_ledger_booked", "The ledger's books, of the whole installation.", labels=["what"]
    )
    if counts:
        for what in BOOKED:
            booked.add_metric([what], getattr(counts, what))
    yield booked
    queued = {str(queue): float(size) for queue, size in counts.queued.items()} if counts else {}
    yield _gauges("notifier_ledger_queued", "Published, and not yet settled by a worker.", "queue", queued)
    for name, text, value in (
        ("waiting", "Denied or scheduled, in Redis or in a row.", counts and counts.waiting),
        ("deferred", "Of those waiting, still in Redis on their way to a row.", counts and counts.deferred),
        ("parked", "Parked: they wait for a person.", counts and counts.parked),
        ("oldest_queued_seconds", "Age of the oldest that is queued.", counts and counts.oldest_queued_s),
    ):
        yield _gauge(f"notifier_ledger_{name}", text, value)
    ages = {queue: age_s for queue, age_s in books.queue_age_s.items() if age_s is not None} if books else {}
    yield _gauges("notifier_queue_age_seconds", "How long the last probe took through a queue.", "queue", ages)
    ago_s = None if books is None else 3_600.0 if books.replayed_s_ago is None else books.replayed_s_ago
    yield _gauge("notifier_replay_age_seconds", "Since a replay last ran; 3600 for an hour or longer.", ago_s)


def _of_rows(rows: Ages | None) -> Iterator[Metric]:
    counts = {"waiting": float(rows.waiting), "parked": float(rows.parked)} if rows else {}
    yield _gauges("notifier_rows", "Rows in dead_letters.", "state", counts)
    oldest = {"waiting": rows.oldest_waiting_s, "parked": rows.oldest_parked_s} if rows else {}
    text = "Since the oldest row was accepted (waiting), or parked."
    yield _gauges("notifier_rows_oldest_seconds", text, "state", oldest)
    text = "How long the first due row has been due: the replay's lag."
    yield _gauge("notifier_rows_overdue_seconds", text, rows and rows.overdue_s)


def _gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric([], value)
    return family


def _gauges(name: str, text: str, label: str, values: dict[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


class Server:
    """prometheus_client's own web server, in threads of this process. Raises OSError where the port is taken."""

    def __init__(self, settings: Settings) -> None:
        self._exposition = Exposition(settings)
        self._http: WSGIServer
        self._thread: Thread
        self._http, self._thread = start_http_server(
            settings.metrics_port, settings.metrics_host, self._exposition.registry
        )
        _listening.append(self._http)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._http.server_port

    def stop(self) -> None:
        """Stop listening."""
        self._http.shutdown()
        self._http.server_close()
        _listening.remove(self._http)
        self._exposition.close()


_listening: list[WSGIServer] = []


def _after_fork() -> None:
    """A pool child that outlives its parent must not keep the port from the next one."""
    for server in _listening:
        server.socket.close()
    _listening.clear()


os.register_at_fork(after_in_child=_after_fork)
