"""How messages travel: a websocket, or an event stream (SSE) for whatever cannot open one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from notifier.gateway.feed import Message

ABORT = "notifier.abort"  # the ASGI extension by which the application drops a connection
BEAT_S = 15.0  # between signs of life on an event stream; proxies end silent ones


class WebSocketWire:
    """Carries messages over a websocket."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def send(self, message: Message) -> None:
        """One text message."""
        try:
            await self._websocket.send_text(message.text)
        except (WebSocketDisconnect, RuntimeError):
            raise ConnectionResetError from None

    async def close(self, code: int, reason: str) -> None:
        """A closing handshake."""
        try:
            await self._websocket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError):
            raise ConnectionResetError from None

    def abort(self) -> None:
        """Drop the connection with all that is unsent, where the server can."""
        _abort(self._websocket.scope)


class EventWire:
    """Carries messages as server-sent events; the id of each is what `Last-Event-ID` brings back."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._asgi_send = send
        self._ended = asyncio.Event()

    async def send(self, message: Message) -> None:
        """One event."""
        await self._write(event_of(message))

    async def close(self, code: int, reason: str) -> None:
        """A last event, and the end of the response."""
        text = json.dumps({"type": "close", "code": code, "reason": reason})
        await self._write(event_of(Message("", text, "close")))
        await self._asgi_send({"type": "http.response.body", "body": b""})
        self._ended.set()

    def abort(self) -> None:
        """Drop the connection with all that is unsent, where the server can."""
        _abort(self._scope)
        self._ended.set()

    async def run(self, started: Callable[[], None]) -> None:
        """The response, until either side ends it."""
        headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await self._asgi_send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._write("retry: 1000\n\n")
        started()
        left, ended = asyncio.create_task(self._disconnected()), asyncio.create_task(self._ended.wait())
        try:
            while True:
                done, _ = await asyncio.wait({left, ended}, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    return
                await self._write(":\n\n")
        except ConnectionError:
            return
        finally:
            left.cancel()
            ended.cancel()

    async def _disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _write(self, text: str) -> None:
        try:
            await self._asgi_send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        except OSError:
            raise ConnectionResetError from None


def event_of(message: Message) -> str:
    """The message in the form of an event stream. Frames are JSON on one line."""
    kind = f"event: {message.type}\n" if message.type else ""
    at = f"id: {message.id}\n" if message.id else ""
    return f"{kind}{at}data: {message.text}\n\n"


def _abort(scope: Scope) -> None:
    abort = scope.get("extensions", {}).get(ABORT)
    if abort:
        abort["abort"]()
