"""The web application: `/ws`, the page at `/`, `/notifier.js`, `/healthz`, `/readyz`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from notifier.errors import StateUnavailable
from notifier.gateway.auth import SUBPROTOCOL, Auth, Refused, Session
from notifier.gateway.client import TOKEN_EXPIRED, Client
from notifier.gateway.feed import Cursor, is_id
from notifier.gateway.hub import Hub
from notifier.gateway.server import ABORT
from notifier.settings import Settings

MAX_PER_USER = 32  # connections of one user to one process
STATIC = Path(__file__).with_name("static")
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def create_app(settings: Settings | None = None) -> Starlette:
    """The ASGI application, one hub each. Raises SettingsError where the secret is missing."""
    settings = settings or Settings()
    gateway = Gateway(settings)
    return Starlette(
        routes=[
            Route("/", page),
            Route("/notifier.js", script),
            Route("/healthz", alive),
            Route("/readyz", gateway.ready),
            WebSocketRoute("/ws", gateway.websocket),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(SecurityHeaders)],
        exception_handlers={Refused: refuse},
        lifespan=gateway.lifespan,
        max_body_size=65_536,
    )


class Gateway:
    """The endpoints that need the hub."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._auth = Auth.from_settings(settings)
        self._hub = Hub(settings.redis_url, settings.state_timeout)

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """The hub listens as long as the application runs."""
        listening = asyncio.create_task(self._hub.run())
        try:
            yield
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    async def ready(self, _request: Request) -> Response:
        """200 while state Redis answers and its pushes are heard; else 503."""
        try:
            await self._hub.ping()
        except StateUnavailable as error:
            return JSONResponse({"status": "unavailable", "reason": str(error)}, 503)
        return JSONResponse({"status": "ready"})

    async def websocket(self, websocket: WebSocket) -> None:
        """A user's feed: `hello` first, then frames, from `?last_id=` on."""
        wire = WebSocketWire(websocket)
        try:
            session = self._auth.check(websocket.headers, websocket.scope["subprotocols"], scheme=websocket.url.scheme)
            client = await self._admit(session, last_id_of(websocket.query_params.get("last_id")), wire)
        except Refused as error:
            await deny(websocket, error)
            return
        try:
            await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in websocket.scope["subprotocols"] else None)
            client.start()
            expiry = asyncio.get_running_loop().call_later(
                max(0.0, session.expires_s - time.time()), client.close, TOKEN_EXPIRED, "the token has expired"
            )
            try:
                while True:
                    await websocket.receive_text()
            finally:
                expiry.cancel()
        except (WebSocketDisconnect, KeyError, RuntimeError):  # gone; sent bytes; gone before it was accepted
            pass
        finally:
            client.gone()
            self._hub.leave(client)

    async def _admit(self, session: Session, last_id: str | None, wire: WebSocketWire) -> Client:
        """A client whose pushes arrive, not yet started. Raises Refused."""
        if self._hub.connections_of(session.user_id) >= MAX_PER_USER:
            raise Refused(429, "too_many_connections", f"over {MAX_PER_USER} connections of this user; close some")
        cursor = Cursor(last_id, self._settings.feed_length)
        client = Client(session.user_id, cursor, wire, partial(self._hub.read, session.user_id))
        try:
            await self._hub.join(client)
        except StateUnavailable as error:
            raise Refused(503, "unavailable", f"{error}; try again soon") from None
        return client


class WebSocketWire:
    """Carries messages over a websocket."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def send(self, text: str) -> None:
        """One text message."""
        try:
            await self._websocket.send_text(text)
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
        abort = self._websocket.scope.get("extensions", {}).get(ABORT)
        if abort:
            abort["abort"]()


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


def last_id_of(text: str | None) -> str | None:
    """The last id that a client names. Raises Refused."""
    if text is None or text == "":
        return None
    if not is_id(text):
        raise Refused(400, "last_id_invalid", "last_id must be the id of a frame, like 1764471120123-0, or left out")
    return text


async def page(_request: Request) -> Response:
    """A page that shows a user's feed."""
    return FileResponse(STATIC / "index.html")


async def script(_request: Request) -> Response:
    """The browser's client."""
    return FileResponse(STATIC / "notifier.js")


async def alive(_request: Request) -> Response:
    """200 as long as the process runs."""
    return JSONResponse({"status": "alive"})


def refusal(error: Refused) -> Response:
    """What a client that is not let in gets."""
    headers = {"retry-after": "1"} if error.status == 503 else {}
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
