"""What every answer carries, and the answers that need no feed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from notifier.gateway import meters
from notifier.gateway.auth import Refused

STATIC = Path(__file__).with_name("static")
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class SecurityHeaders:
    """Puts the same careful headers on every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""

        async def careful(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["content-security-policy"] = CSP
                headers["x-content-type-options"] = "nosniff"
                headers["referrer-policy"] = "no-referrer"
                headers.setdefault("cache-control", "no-cache")
            await send(message)

        await self._app(scope, receive, careful if scope["type"] == "http" else send)


async def page(_request: Request) -> Response:
    """A page that shows a user's feed."""
    return FileResponse(STATIC / "index.html")


async def live_page(_request: Request) -> Response:
    """A page that shows everything."""
    return FileResponse(STATIC / "live.html")


async def script(_request: Request) -> Response:
    """The browser's client."""
    return FileResponse(STATIC / "notifier.js")


async def alive(_request: Request) -> Response:
    """200 as long as the process runs."""
    return JSONResponse({"status": "alive"})


async def upgrade_required(_request: Request) -> Response:
    """What a plain GET of the websocket's path gets."""
    text = "this is a websocket: connect with ws:// or wss://, or read /sse as an event stream"
    headers = {"upgrade": "websocket", "connection": "Upgrade"}
    return JSONResponse({"error": "upgrade_required", "message": text}, 426, headers)


def refusal(error: Refused) -> Response:
    """What a client that is not let in gets: `{"error": kind, "message": text}`."""
    meters.REFUSED.labels(error.kind).inc()
    headers = {503: {"retry-after": "1"}, 401: {"www-authenticate": "Bearer"}}.get(error.status, {})
    return JSONResponse({"error": error.kind, "message": str(error)}, error.status, headers)


async def refuse(_request: Request, error: Exception) -> Response:
    """Starlette's handler for Refused."""
    if not isinstance(error, Refused):
        raise error
    return refusal(error)


async def deny(websocket: WebSocket, error: Refused) -> None:
    """Answer the handshake with an HTTP error, where the server can."""
    with suppress(WebSocketDisconnect, RuntimeError):
        if "websocket.http.response" in websocket.scope.get("extensions", {}):
            await websocket.send_denial_response(refusal(error))
        else:
            await websocket.close(1008, error.kind)
