"""One trace over real processes: the caller's and the gateway's here, a prefork worker's in a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from notifier import tracing
from notifier.notification import Identity
from tasks import replay_dead_letters, send_notification
from tests.acceptance.conftest import Site
from tests.gateway import Running, payloads
from tests.support import eventually
from tests.tracing import recording

SECRET = "a secret of the tests, 32 characters"
CANARY = "canary-7f3a"
WORKER = """
from celery.signals import worker_process_init
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from tasks import app


@worker_process_init.connect(weak=False)
def trace_to_file(**_):
    exporter = ConsoleSpanExporter(out=open("spans", "a"), formatter=lambda span: span.to_json(indent=None) + "\\n")
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=600_000))
    trace.set_tracer_provider(provider)
"""


@pytest.mark.slow
def test_denied_replayed_and_pushed_is_one_trace_over_processes(make_site: Callable[..., Site]) -> None:
    site = make_site(user_limit="12/min burst 1", local_bucket="off", secret=SECRET)
    (site.directory / "traced.py").write_text(WORKER)
    worker = site.worker(app="traced")
    here: list[dict[str, Any]] = []
    with recording() as made, Running(site.settings).running() as gateway:
        gateway.wait_until_ready()
        with gateway.connect("ann") as connection:
            for name in ("first", "second"):
                send_notification.delay("ann", {"text": CANARY}, notification_id=name)
                eventually(lambda: site.counts.in_flight == 0, timeout_s=60)

            def settled() -> bool:
                replay_dead_letters.delay()
                return site.counts.delivered == 2

            eventually(settled, timeout_s=60, interval_s=0.5)
            assert len(payloads(connection, 2, timeout_s=60)) == 2
        eventually(lambda: len(made.spans) == 4, timeout_s=60)
        here += [json.loads(span.to_json()) for span in made.spans]
    worker.stop()  # its processes export what they still hold

    text = (site.directory / "spans").read_text()
    spans = sorted([*here, *map(json.loads, text.splitlines())], key=lambda span: str(span["start_time"]))
    assert CANARY not in text + json.dumps(here)
    assert seen(spans, "first") == ["accept", "deliver", "push"]
    assert seen(spans, "second") == ["accept", "defer", "replay", "push"]


def seen(spans: list[dict[str, Any]], notification_id: str) -> list[str]:
    """The operations of one of Ann's notifications in the order in which they began; all have the same parent."""
    trace_id = "0x" + tracing.trace_id(Identity("ann", "websocket", notification_id))
    own = [span for span in spans if span["context"]["trace_id"] == trace_id]
    assert len({span["parent_id"] for span in own}) == 1
    return [span["attributes"]["messaging.operation.name"] for span in own]
