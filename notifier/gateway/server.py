"""Runs the gateway on uvicorn."""

from __future__ import annotations

import asyncio
from asyncio.transports import BaseTransport
from typing import TYPE_CHECKING, cast

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from notifier.settings import Settings

if TYPE_CHECKING:
    from starlette.applications import Starlette

ABORT = "notifier.abort"  # the ASGI extension by which the application drops a connection
WRITE_BUFFER_BYTES = 65_536  # beyond, sending waits for the client
MAX_MESSAGE_BYTES = 4_096  # what a client may send at once
PING_S = 20.0
ABORT_S = 2.0


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's, made to let go of clients that have stopped reading.

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
        await super().run_asgi()


def config(app: Starlette, host: str, port: int) -> uvicorn.Config:
    """No compression (memory per connection), no access and no debug log (a client may have put a token anywhere)."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        ws=WebSocketProtocol,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        ws_per_message_deflate=False,
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=10,
        backlog=4_096,
    )


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve until TERM or INT. Raises SettingsError where the secret is missing."""
    from notifier.gateway.app import create_app

    uvicorn.Server(config(create_app(settings), host, port)).run()
