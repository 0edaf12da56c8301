"""Runs the gateway on uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from asyncio.transports import BaseTransport
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from notifier.gateway.app import Gateway, create_app
from notifier.gateway.wires import ABORT
from notifier.redis.state import refuse_cluster
from notifier.settings import Settings

WRITE_BUFFER_BYTES = 65_536  # beyond, sending waits for the client
MAX_MESSAGE_BYTES = 4_096  # what a client may send at once
PING_S = 20.0  # a client that has answered no ping for as long is gone
ABORT_S = 2.0
DRAIN_S = 5.0  # over which clients are sent away
UNACKNOWLEDGED_MS = 40_000  # after which the kernel gives up a peer that is silent


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's, made to let go of clients that have stopped reading, and to refuse some without an error in the log.

    transport.close() waits until the buffer is empty, for a frozen client for ever; only abort() frees it.
    """

    def connection_made(self, transport: BaseTransport) -> None:
        """The handshake begins."""
        cast(asyncio.Transport, transport).set_write_buffer_limits(WRITE_BUFFER_BYTES)
        super().connection_made(transport)

    def keepalive_timeout(self) -> None:
        """No pong came."""
        super().keepalive_timeout()
        self.loop.call_later(ABORT_S, self.transport.abort)

    async def run_asgi(self) -> None:
        """Hand the connection to the application."""
        self.scope["extensions"][ABORT] = {"abort": self.transport.abort}
        app = self.app

        async def refusing(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)
            if self.initial_response is not None and self.close_sent:  # refused, not forgotten (Kludex/uvicorn#3138)
                self.handshake_complete = True

        self.app = refusing
        try:
            await super().run_asgi()
        finally:
            self.app = app  # else each connection would be a cycle, and stay until the collector comes


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's, with a way to drop an event stream whose client has stopped reading."""

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}}


class Server(uvicorn.Server):
    """Sends clients away one after the other before it stops."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """TERM or INT came."""
        for server in self.servers:
            server.close()
        for each in sockets or []:
            each.close()
        app = self.config.app
        if isinstance(app, Starlette) and not self.force_exit:
            gateway: Gateway = app.state.gateway
            await gateway.drain(DRAIN_S)
        await super().shutdown(sockets)


def server(settings: Settings, *, ping_s: float = PING_S) -> Server:
    """A server, not yet listening. Raises SettingsError where the secret is missing or state Redis is a cluster.

    No compression (memory per connection), no access and no debug log (a client may have put a token anywhere).
    """
    refuse_cluster(settings.redis_url)
    return Server(
        uvicorn.Config(
            create_app(settings),
            http=HttpProtocol,
            ws=WebSocketProtocol,
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_ping_interval=ping_s,
            ws_ping_timeout=ping_s,
            ws_per_message_deflate=False,
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=10,
        )
    )


def listen(host: str, port: int) -> socket.socket:
    """A listening socket whose connections the kernel ends when the peer has vanished. Raises OSError."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # inherited by what is accepted; Linux
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
        listener.bind(address)
        listener.listen(4_096)
    except BaseException:
        listener.close()
        raise
    return listener


def allow_many_connections() -> None:
    """Each takes a file descriptor, and the usual soft limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
