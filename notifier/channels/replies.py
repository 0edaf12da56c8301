"""What the answer to a webhook means. Every part of it comes from a stranger."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC
from email.utils import parsedate_to_datetime

from notifier.channels import Failed, Outcome, RetryAt, Sent

LONGEST_WAIT_S = 86_400.0  # whatever it asks for: a receiver that is wrong by years must not silence itself
AGAIN = frozenset({408, 425, 429})


def outcome_of(status: int, headers: Iterable[tuple[bytes, bytes]], host: str, now_s: float) -> Outcome:
    """2xx: it has it. 408, 425, 429, 5xx and what is no HTTP status: not now. Everything else: never."""
    if 200 <= status < 300:
        return Sent()
    if status in AGAIN or not 300 <= status < 500:
        return RetryAt(f"{host} answered {status}", retry_after_s(headers, now_s))
    if status < 400:
        return Failed(f"{host} answered {status}: redirects are not followed; register the address it points to")
    return Failed(f"{host} answered {status}")


def retry_after_s(headers: Iterable[tuple[bytes, bytes]], now_s: float) -> float:
    """Seconds from now that `Retry-After` asks for, as seconds or as an HTTP date, a day at most.

    0 where it is missing, past or garbled. `now_s` is seconds since the epoch.
    """
    value = next((value for name, value in headers if name.lower() == b"retry-after"), b"").strip()
    if re.fullmatch(rb"[0-9]{1,15}", value):
        return min(float(value), LONGEST_WAIT_S)
    if not 16 <= len(value) <= 40:  # no form of an HTTP date is longer
        return 0.0
    try:
        moment = parsedate_to_datetime(value.decode("ascii"))
        at_s = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0.0
    return min(max(at_s - now_s, 0.0), LONGEST_WAIT_S)
