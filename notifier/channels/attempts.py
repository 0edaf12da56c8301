"""One try at a channel, and how long to wait for the next."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from notifier import logs, metrics
from notifier.channels import Channel, Delivery, Failed, Outcome, RetryAt
from notifier.channels.breaker import breakers
from notifier.errors import clean_error, ends_process
from notifier.notification import MAX_SPAN_S

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 2.0, 3_600.0


def backoff_s(
    attempts: int, asked_s: float = 0.0, *, uniform: Callable[[float, float], float] = random.uniform
) -> float:
    """Seconds until the next try after `attempts` tries: exponential with jitter, never earlier than asked.

    Source: AWS Architecture Blog, "Exponential Backoff And Jitter".
    """
    asked_s = min(max(asked_s, 0.0), MAX_SPAN_S) if math.isfinite(asked_s) else 0.0
    ceiling_s = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(attempts - 1, 20))
    return asked_s + uniform(ceiling_s / 10, ceiling_s)


def attempt(channel: Channel, deliveries: Sequence[Delivery]) -> list[Outcome]:
    """One try at a channel. Whatever it raises counts as a failed attempt of the whole batch."""
    outcomes = _called(channel, deliveries)
    if not getattr(channel, "has_own_breakers", False):
        breakers.record(channel.name, outcomes)
    return outcomes


def _called(channel: Channel, deliveries: Sequence[Delivery]) -> list[Outcome]:
    try:
        outcomes = list(channel.deliver(tuple(deliveries)))  # what it takes from a list would be missing here
    except BaseException as error:  # a plugin's; its text may hold what it was given, so only its type is kept
        if ends_process(error):
            raise
        about = (
            logs.of(deliveries[0].notification.identity) if len(deliveries) == 1 else {"recipients": len(deliveries)}
        )
        metrics.degraded(f"channel_{channel.name}", type(error).__name__, about=about)
        return [RetryAt(type(error).__name__) for _ in deliveries]
    if len(outcomes) != len(deliveries):
        problem = f"channel {channel.name} gave {len(outcomes)} outcomes for {len(deliveries)}"
        return [RetryAt(problem) for _ in deliveries]
    if not all(isinstance(outcome, Outcome) for outcome in outcomes):
        return [RetryAt(f"channel {channel.name} gave something that is no outcome") for _ in deliveries]
    return [_sound(outcome) for outcome in outcomes]


def _sound(outcome: Outcome) -> Outcome:
    """With an error that can be kept, and a wait that is a float. Of others in the batch some have been sent."""
    if isinstance(outcome, Failed):
        return Failed(clean_error(outcome.error))
    if not isinstance(outcome, RetryAt):
        return outcome
    try:
        wait_s = float(outcome.wait_s)
    except Exception:  # what a plugin made may raise anything
        wait_s = 0.0
    return RetryAt(clean_error(outcome.error), wait_s)
