"""Whose trace a span is in, what it says, and what it costs who does not trace."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from notifier import tracing
from notifier.hooks import Booked
from notifier.notification import Identity, Notification
from tests.tracing import operations, recording

ANN = Notification("ann", '"the payload"', "n1", category="like")


def accept(*notifications: Notification) -> None:
    tracing.accepted(notifications, ["queued"] * len(notifications), tracing.now_ns())


def links_of(span: object) -> list[int]:
    assert isinstance(span, ReadableSpan)
    return [link.context.span_id for link in span.links]


def test_a_trace_id_never_changes() -> None:
    """Rows outlive releases: what was accepted by an old one is replayed by a new one, in the same trace."""
    assert tracing.trace_id(Identity("42", "websocket", "like-7")) == "b9cd85ba7fc8a4c097d221b43d1a1494"


def test_every_identity_has_a_trace_of_its_own() -> None:
    identities = [
        ("a", "b", "c"),
        ("a", "c", "b"),
        ("ab", "", "c"),
        ("a", "bc", ""),
        ("a:1", "b", "c"),
        ("a", "b", "1:c"),
    ]
    assert len({tracing.trace_id(Identity(*words)) for words in identities}) == len(identities)


def test_spans_of_a_notification_are_one_trace_with_one_parent() -> None:
    with recording() as made:
        accept(ANN)
        tracing.booked([ANN], [Booked(0, "deferred", "rate_limited")], "message")
        tracing.booked([ANN], [Booked(0, "delivered", "")], "row")
        tracing.pushed("ann", '{"id":"1-0","notification_id":"n1","seq":1,"category":"like","payload":{}}', 1)
    assert operations(made.of(ANN.identity)) == ["accept", "defer", "replay", "push"]
    assert len({span.parent.span_id for span in made.spans if span.parent}) == 1
    assert [span.kind for span in made.spans] == [
        SpanKind.PRODUCER,
        SpanKind.CONSUMER,
        SpanKind.CONSUMER,
        SpanKind.PRODUCER,
    ]


def test_what_a_span_says() -> None:
    with recording() as made:
        tracing.booked([ANN], [Booked(0, "parked", "poison")], "message")
    (span,) = made.spans
    assert dict(span.attributes or {}) == {
        "messaging.system": "notifier",
        "messaging.operation.name": "settle",
        "messaging.operation.type": "settle",
        "messaging.destination.name": "websocket",
        "messaging.message.id": "n1",
        "notifier.user_id": "ann",
        "notifier.channel": "websocket",
        "notifier.category": "like",
        "notifier.priority": "normal",
        "notifier.end": "parked",
        "notifier.via": "message",
        "notifier.reason": "poison",
    }
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "poison")
    assert "the payload" not in span.to_json()


def test_a_span_lasts_as_long_as_the_work_that_booked_it() -> None:
    @tracing.timed
    def work() -> int:
        tracing.booked([ANN], [Booked(0, "delivered", "")], "message")
        return 1

    with recording() as made:
        before_ns = tracing.now_ns()
        assert work() == 1
    (span,) = made.spans
    assert span.start_time and span.end_time and before_ns <= span.start_time <= span.end_time


def test_spans_and_their_callers_link_to_each_other() -> None:
    with recording() as made, made.tracer.start_as_current_span("request") as request:
        accept(ANN)
    span, caller = made.spans
    assert links_of(span) == [request.get_span_context().span_id]
    context = span.get_span_context()
    assert context and links_of(caller) == [context.span_id]


def test_a_caller_of_thousands_gets_few_links() -> None:
    with recording() as made, made.tracer.start_as_current_span("request"):
        accept(*(ANN.to(f"user-{number}") for number in range(40)))
    *spans, caller = made.spans
    assert len(spans) == 40 and all(links_of(span) for span in spans)
    assert len(links_of(caller)) == tracing.LINKS_BACK


def test_another_thread_links_for_its_callers() -> None:
    with recording() as made:
        with made.tracer.start_as_current_span("request") as request:
            caller = tracing.caller()
        assert caller is request and tracing.caller() is None
        with tracing.sending_for({id(ANN): caller}):
            accept(ANN, ANN.to("bob"))
    assert links_of(made.of(ANN.identity)[0]) == [request.get_span_context().span_id]
    assert links_of(made.of(ANN.to("bob").identity)[0]) == []


@pytest.mark.parametrize(
    "sampler", [TraceIdRatioBased(0.5), ParentBased(TraceIdRatioBased(0.5))], ids=["ratio", "parent"]
)
def test_a_ratio_takes_whole_traces(sampler: Sampler) -> None:
    users = [ANN.to(f"user-{number}") for number in range(64)]
    with recording(sampler) as made:
        accept(*users)
        tracing.booked(users, [Booked(k, "delivered", "") for k in range(64)], "message")
    taken = [operations(made.of(user.identity)) for user in users]
    assert [x for x in taken if x] == [["accept", "deliver"]] * (len(made.spans) // 2)
    assert 8 < len(made.spans) // 2 < 56


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(ALWAYS_OFF)], ids=["off", "parent"])
def test_nothing_is_taken_where_the_sampler_says_so(sampler: Sampler) -> None:
    with recording(sampler) as made, made.tracer.start_as_current_span("request"):
        accept(ANN)
    assert made.spans == ()


def test_a_processor_that_fails_harms_nobody() -> None:
    class Broken(SpanProcessor):
        def on_start(self, span: object, parent_context: object = None) -> None:
            raise RuntimeError

    with recording() as made:
        made.process(Broken())
        accept(ANN)
        tracing.pushed("ann", "no frame", 1)


def test_where_no_provider_is_set_nothing_begins() -> None:
    before = trace._TRACER_PROVIDER
    assert before is None
    assert tracing.now_ns() == 0
    assert tracing.caller() is None
    accept(ANN)


def test_opentelemetry_is_never_loaded_from_here() -> None:
    code = "import sys, notifier.tally, notifier.tracing as t; t.now_ns(); print('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"
