"""OpenTelemetry: a notification's spans, one trace from accept to push. Nothing at all where no tracer provider is set.

Nothing is carried: trace id and parent are made of the identity, so every process finds them, and a row weeks later.
The parent stands for a root that nobody records. Whether it is sampled is what this process's sampler says of a root
with that trace id: a sampler that goes by trace id says the same everywhere.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from notifier import metrics
from notifier.hooks import Booked
from notifier.logs import LONGEST
from notifier.notification import WEBSOCKET, Identity, Notification
from notifier.redis.keys import identity_part

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, TracerProvider

FLUSH_S = 1.0  # an exporter whose collector is away tries for ten by itself
LINKS_BACK = 16  # of one call: a caller's span holds 128 by default, and a call may have thousands of recipients
_OPERATIONS = {("delivered", "message"): "deliver", ("deferred", "message"): "defer",
               ("delivered", "row"): "replay", ("digested", "row"): "replay"}  # fmt: skip
_TYPES = {"accept": "send", "push": "send", "deliver": "process", "replay": "process"}  # any other: settle

P = ParamSpec("P")
R = TypeVar("R")
_begun_ns: ContextVar[int] = ContextVar("notifier_begun_ns", default=0)
_callers: ContextVar[Mapping[int, Span]] = ContextVar("notifier_callers", default={})  # noqa: B039  never changed


def trace_id(identity: Identity) -> str:
    """Of the one trace that this notification has, 32 hexadecimal digits."""
    return f"{_ids(identity)[0]:032x}"


def wanted() -> bool:
    """Whether this process has a tracer provider."""
    return _recorder() is not None


def now_ns() -> int:
    """When something begins that spans will tell of; 0 where nobody traces."""
    return time.time_ns() if _recorder() else 0


def timed(work: Callable[P, R]) -> Callable[P, R]:
    """Spans of what `work` books begin when it was called: a batch's members share its time."""

    @wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not (begun_ns := now_ns()):
            return work(*args, **kwargs)
        before = _begun_ns.set(begun_ns)
        try:
            return work(*args, **kwargs)
        finally:
            _begun_ns.reset(before)

    return run


def caller() -> Span | None:
    """The span that this code runs in, to be named by another thread that sends for it."""
    recorder = _recorder()
    return recorder.current() if recorder else None


@contextmanager
def sending_for(callers: Mapping[int, Span]) -> Iterator[None]:
    """Within, what is accepted links to these spans, by the id() of each notification."""
    before = _callers.set(callers)
    try:
        yield
    finally:
        _callers.reset(before)


def accepted(notifications: Sequence[Notification], statuses: Sequence[str], begun_ns: int) -> None:
    """What accept said. Raises nothing, like all that follow."""
    if begun_ns and (recorder := _recorder()):
        with _harmless():
            spans = recorder.batch(begun_ns)
            for n, status in zip(notifications, statuses, strict=True):
                if root := spans.root(n.identity):
                    attributes = {**_of(n), "notifier.status": status}
                    spans.add(root, "accept", n.identity, attributes, caller=_callers.get().get(id(n)))


def booked(notifications: Sequence[Notification], found: Sequence[Booked], via: str) -> None:
    """What a script of the ledger booked, see hooks.booked. `via` is message or row."""
    if found and (recorder := _recorder()):
        with _harmless():
            spans = recorder.batch(_begun_ns.get() or time.time_ns())
            for place, what, reason in found:
                n = notifications[place]
                if (root := spans.root(n.identity)) is None:
                    continue
                attributes = {**_of(n), "notifier.end": what, "notifier.via": via}
                if reason:
                    attributes["notifier.reason"] = reason[:LONGEST]
                operation = _OPERATIONS.get((what, via), "settle")
                # What a parked one failed with is in its row: an error's text may hold what it was given.
                spans.add(root, operation, n.identity, attributes, failed=what == "parked")


def pushed(user_id: str, frame: str, begun_ns: int) -> None:
    """A frame was written to a client of this user's. The payload in it is not looked at."""
    if begun_ns and (recorder := _recorder()):
        with _harmless():
            head = json.loads(frame[: frame.index(',"payload":')] + "}")  # ids cannot hold it: quotes are escaped
            identity = Identity(user_id, WEBSOCKET, head["notification_id"])
            spans = recorder.batch(begun_ns)
            if root := spans.root(identity):
                spans.add(root, "push", identity, {"notifier.category": head["category"]})


def flush(timeout_s: float = FLUSH_S) -> None:
    """Export what was recorded, as far as that takes no longer. For processes that end without their exit handlers."""
    if recorder := _recorder():
        thread = threading.Thread(target=recorder.flush, name="notifier-traces", daemon=True)
        thread.start()
        thread.join(timeout_s)


def _of(n: Notification) -> dict[str, str]:
    """Of one that is known by its identity only, nothing."""
    if not n.body:
        return {}
    return {"notifier.category": n.category[:LONGEST], "notifier.priority": str(n.priority)}


def _ids(identity: Identity) -> tuple[int, int]:
    """Trace id, and the span id of the root that nobody records."""
    digest = hashlib.sha256(identity_part(identity).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:16]), int.from_bytes(digest[16:24])


@contextmanager
def _harmless() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # somebody else's processor or exporter; what it was about is done, and counts
        metrics.degraded("tracing", type(error).__name__)


class _Recorder:
    """Makes spans with a provider's tracer."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import context, trace

        self.trace = trace
        self._provider = provider
        self.tracer = provider.get_tracer("notifier")
        self._sampler: Any = getattr(self.tracer, "sampler", None)  # the SDK's tracers have one
        self._no_context = context.Context()

    def current(self) -> Span | None:
        span = self.trace.get_current_span()
        return span if span.get_span_context().is_valid else None

    def root(self, identity: Identity) -> SpanContext | None:
        """The parent of all spans of this notification; None if none is to be recorded."""
        trace_number, span_number = _ids(identity)
        flags = self.trace.TraceFlags.SAMPLED
        if self._sampler is not None:
            decision = self._sampler.should_sample(self._no_context, trace_number, "notification").decision
            if not decision.is_recording():
                return None
            if not decision.is_sampled():
                flags = self.trace.TraceFlags.DEFAULT
        return self.trace.SpanContext(
            trace_number, span_number, is_remote=True, trace_flags=self.trace.TraceFlags(flags)
        )

    def flush(self) -> None:
        with _harmless():
            force_flush: Any = getattr(self._provider, "force_flush", None)  # the SDK's providers have one
            if force_flush:
                force_flush()

    def batch(self, begun_ns: int) -> _Batch:
        return _Batch(self, begun_ns)


class _Batch:
    """The spans of one call. All begin and end alike."""

    def __init__(self, recorder: _Recorder, begun_ns: int) -> None:
        self._recorder = recorder
        self._begun_ns, self._ended_ns = begun_ns, time.time_ns()
        self._here = recorder.current()
        self._links_back = 0
        self.root = recorder.root

    def add(
        self,
        root: SpanContext,
        operation: str,
        identity: Identity,
        attributes: dict[str, str],
        *,
        caller: Span | None = None,
        failed: bool = False,
    ) -> None:
        """A span that links to the caller's, or the one that this code runs in, and is linked to from there."""
        trace = self._recorder.trace
        caller = caller or self._here
        type_of = _TYPES.get(operation, "settle")
        span = self._recorder.tracer.start_span(
            f"{operation} notification",
            trace.set_span_in_context(trace.NonRecordingSpan(root)),
            trace.SpanKind.PRODUCER if type_of == "send" else trace.SpanKind.CONSUMER,
            {
                "messaging.system": "notifier",
                "messaging.operation.name": operation,
                "messaging.operation.type": type_of,
                "messaging.destination.name": identity.channel[:LONGEST],
                "messaging.message.id": identity.notification_id[:LONGEST],
                "notifier.user_id": identity.user_id[:LONGEST],
                "notifier.channel": identity.channel[:LONGEST],
                **attributes,
            },
            links=[trace.Link(caller.get_span_context())] if caller else None,
            start_time=self._begun_ns,
        )
        if failed:
            span.set_status(trace.StatusCode.ERROR, attributes.get("notifier.reason"))
        span.end(self._ended_ns)
        if caller and self._links_back < LINKS_BACK and caller.is_recording():
            caller.add_link(span.get_span_context())
            self._links_back += 1


_known: tuple[object, _Recorder | None] = (None, None)


def _recorder() -> _Recorder | None:
    """None where no provider is set. Who has not loaded OpenTelemetry has set none: it is never loaded from here."""
    global _known
    loaded = sys.modules.get("opentelemetry.trace")
    if loaded is None or not hasattr(loaded, "get_tracer_provider"):  # it may be loading just now
        return None
    try:
        provider = loaded.get_tracer_provider()
        if provider is not _known[0]:
            _known = provider, _made(loaded, provider)
    except Exception as error:  # a provider that its environment names and that cannot be loaded
        metrics.degraded("tracing", type(error).__name__)
        return None
    return _known[1]


def _made(loaded: Any, provider: Any) -> _Recorder | None:
    if isinstance(provider, (loaded.ProxyTracerProvider, loaded.NoOpTracerProvider)):
        return None
    recorder = _Recorder(provider)
    return None if isinstance(recorder.tracer, loaded.NoOpTracer) else recorder  # OTEL_SDK_DISABLED
