"""kombu's connection to the broker: certificates are verified, and a publish ends when it says.

redis-py 8 retries ten times by default, about four seconds a call, and kombu has no option for it.
"""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kombu import Connection
from kombu.connection import ConnectionPool
from kombu.transport.redis import Channel, Transport
from redis.backoff import NoBackoff
from redis.retry import Retry


class BoundedChannel(Channel):  # type: ignore[misc]
    """One try."""

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        params: dict[str, Any] = super()._connparams(asynchronous)
        return params | {"retry": Retry(NoBackoff(), 0)}

    def _create_client(self, asynchronous: bool = False) -> Any:
        """One client for as long as the pool lives; kombu makes one for every message."""
        if asynchronous:
            return super()._create_client(asynchronous=True)
        pool = self.pool
        client = self.__dict__.get("_kept_client")
        if client is None or client.connection_pool is not pool:
            client = self._kept_client = super()._create_client()
        return client


class BoundedTransport(Transport):  # type: ignore[misc]
    """The transport of such channels."""

    Channel = BoundedChannel


class AmqpConnections(ConnectionPool):  # type: ignore[misc]
    """One that failed is dropped: closed politely, it would wait twice more for a server that may be silent."""

    def close_resource(self, resource: Any) -> None:
        """Close its socket."""
        resource.collect()


def place_of(connection: Connection) -> str:
    """The broker's host and port, for people."""
    if "@" in str(connection.virtual_host):  # a password with a slash in it: what looks like a port may be part of it
        return "its URL (percent-encode special characters of the password)"
    return f"{connection.hostname or 'localhost'}{f':{connection.port}' if connection.port else ''}"


def tls(url: str) -> dict[str, Any] | None:
    """Celery's `broker_use_ssl` for a URL: verify, unless the URL says otherwise. kombu by itself verifies nothing."""
    parts = urlsplit(url)
    if parts.scheme == "rediss" and "ssl_cert_reqs" not in parse_qs(parts.query):
        return {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    if parts.scheme == "amqps":
        return {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": parts.hostname}
    return None
