"""kombu's Redis transport for producers: no retries inside redis-py, so that a publish ends when it says.

redis-py 8 retries ten times by default, about four seconds a call, and kombu has no option for it.
"""

from __future__ import annotations

from typing import Any

from kombu.transport.redis import Channel, Transport
from redis.backoff import NoBackoff
from redis.retry import Retry


class BoundedChannel(Channel):  # type: ignore[misc]
    """One try."""

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        params: dict[str, Any] = super()._connparams(asynchronous)
        return params | {"retry": Retry(NoBackoff(), 0)}


class BoundedTransport(Transport):  # type: ignore[misc]
    """The transport of such channels."""

    Channel = BoundedChannel
