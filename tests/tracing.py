"""What the tests of tracing share: a provider that keeps its spans, and what they say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from notifier import tracing
from notifier.notification import Identity


class Recording:
    """A provider, and what was exported."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.process(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("tests")

    def process(self, processor: SpanProcessor) -> None:
        """Let it see every span too."""
        self.provider.add_span_processor(processor)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """In the order in which they ended."""
        return self._exporter.get_finished_spans()

    def of(self, identity: Identity) -> list[ReadableSpan]:
        """This notification's."""
        return [span for span in self.spans if trace_of(span) == tracing.trace_id(identity)]


@contextmanager
def recording(sampler: Sampler | None = None) -> Iterator[Recording]:
    """Within, this process's provider. OpenTelemetry's own way to set one works once in a process."""
    before: Any = trace._TRACER_PROVIDER
    made = Recording(sampler)
    trace._TRACER_PROVIDER = made.provider
    try:
        yield made
    finally:
        trace._TRACER_PROVIDER = before


def trace_of(span: ReadableSpan) -> str:
    """Its trace id."""
    context = span.get_span_context()
    assert context
    return f"{context.trace_id:032x}"


def operations(spans: list[ReadableSpan]) -> list[str]:
    """The first word of each name."""
    return [span.name.partition(" ")[0] for span in spans]
