"""The web application: `/ws`, `/sse`, the page at `/`, `/notifier.js`, `/healthz`, `/readyz`, `/metrics`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from notifier.errors import StateUnavailable
from notifier.exposition import Exposition
from notifier.gateway import meters, web
from notifier.gateway.auth import SUBPROTOCOL, Auth, Refused, Session
from notifier.gateway.client import GOING_AWAY, POLICY, TOKEN_EXPIRED, Client, Wire
from notifier.gateway.feed import PING, Cursor, heard, is_id
from notifier.gateway.hub import Hub
from notifier.gateway.wires import EventWire, WebSocketWire
from notifier.limits.local import LocalBucket
from notifier.settings import Settings

MAX_PER_USER = 32  # connections of one user to one process
TALK = (20, 2.0)  # messages a client may send: at once, and per second
PONG = '{"type":"pong"}'


def create_app(settings: Settings | None = None) -> Starlette:
    """The ASGI application; `app.state.gateway` is its Gateway. Raises SettingsError where the secret is missing."""
    settings = settings or Settings()
    gateway = Gateway(settings)
    own: list[BaseRoute] = [Route("/", web.page)]
    if settings.live_page:
        from notifier.gateway.live import Live  # loads Celery, to send with

        live = Live(settings, Auth.from_settings(settings))
        own = [Route("/", web.live_page), Route("/feed", web.page), WebSocketRoute("/live", live.websocket)]
    app = Starlette(
        routes=[
            *own,
            Route("/notifier.js", web.script),
            Route("/healthz", web.alive),
            Route("/readyz", gateway.ready),
            Route("/metrics", gateway.metrics),
            Route("/sse", gateway.events),
            WebSocketRoute("/ws", gateway.websocket),
            Route("/ws", web.upgrade_required),
            Mount("/static", StaticFiles(directory=web.STATIC)),
        ],
        middleware=[Middleware(web.SecurityHeaders)],
        exception_handlers={Refused: web.refuse},
        lifespan=gateway.lifespan,
        max_body_size=65_536,
    )
    app.state.gateway = gateway
    return app


class Gateway:
    """The endpoints that need the hub."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._auth = Auth.from_settings(settings)
        self._hub = Hub(settings.redis_url, settings.feed_seconds)
        self._exposition = Exposition(settings, only_named=True)
        self._draining = False

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
            self._exposition.close()

    async def drain(self, longest_s: float) -> None:
        """Ask every client to come back, to another process; not all in the same moment."""
        self._draining = True
        clients = list(self._hub.clients)
        pause_s = min(longest_s / len(clients), 0.01) if clients else 0.0
        for client in clients:
            client.close(GOING_AWAY, "this server is going away: connect again and resume")
            await asyncio.sleep(pause_s)

    async def ready(self, _request: Request) -> Response:
        """200 while state Redis answers and its pushes are heard; else 503."""
        try:
            if self._draining:
                raise StateUnavailable("going away")
            await self._hub.ping()
        except StateUnavailable as error:
            return JSONResponse({"status": "unavailable", "reason": str(error)}, 503)
        return JSONResponse({"status": "ready"})

    async def metrics(self, _request: Request) -> Response:
        """Prometheus: what the processes of this host count, and how the installation stands."""
        text = await asyncio.to_thread(generate_latest, self._exposition.registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def websocket(self, websocket: WebSocket) -> None:
        """A user's feed: `hello` first, then frames, from `?last_id=` on."""
        wire = WebSocketWire(websocket)
        offered = websocket.scope["subprotocols"]
        try:
            session = self._auth.check(websocket.headers, offered, scheme=websocket.url.scheme)
            client = await self._admit(session, last_id_of(websocket.query_params.get("last_id")), wire)
        except Refused as error:
            await web.deny(websocket, error)
            return
        with self._connected(client, session, "websocket"), suppress(WebSocketDisconnect, RuntimeError):
            await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
            client.start()
            await self._hear(websocket, client)

    async def events(self, request: Request) -> Response:
        """The same as an event stream, from `Last-Event-ID` or `?last_id=` on. Raises Refused."""
        session = self._auth.check(request.headers, scheme=request.url.scheme)
        last_id = last_id_of(request.headers.get("last-event-id") or request.query_params.get("last_id"))
        return EventStream(self, session, last_id)

    async def stream(self, session: Session, last_id: str | None, wire: EventWire) -> None:
        """Serve an event stream until either side ends it. Raises Refused."""
        client = await self._admit(session, last_id, wire)
        with self._connected(client, session, "sse"):
            await wire.run(client.start)

    async def _admit(self, session: Session, last_id: str | None, wire: Wire) -> Client:
        """A client whose pushes arrive, not yet started. Raises Refused."""
        if self._draining:
            raise Refused(503, "going_away", "this server is going away; connect again")
        if self._hub.connections_of(session.user_id) >= MAX_PER_USER:
            raise Refused(429, "too_many_connections", f"over {MAX_PER_USER} connections of this user; close some")
        client = Client(session.user_id, Cursor(last_id, self._settings.feed_length), wire, self._hub)
        try:
            await self._hub.join(client)
        except StateUnavailable as error:
            raise Refused(503, "unavailable", f"{error}; try again soon") from None
        return client

    @contextmanager
    def _connected(self, client: Client, session: Session, transport: str) -> Iterator[None]:
        meters.CLIENTS.labels(transport).inc()
        expiry = asyncio.get_running_loop().call_later(
            max(0.0, session.expires_s - time.time()), client.close, TOKEN_EXPIRED, "the token has expired"
        )
        try:
            yield
        finally:
            expiry.cancel()
            client.gone()
            self._hub.leave(client)
            meters.CLIENTS.labels(transport).dec()

    async def _hear(self, websocket: WebSocket, client: Client) -> None:
        """What a client may say: `{"type":"ping"}`, and `{"type":"read","id":...}` for all up to that id."""
        patience = LocalBucket(*TALK)
        while True:
            try:
                meant = heard(await websocket.receive_text())
            except KeyError:  # bytes come without a text
                meant = None
            if meant is None or not patience.consume():
                client.close(POLICY, "not understood, or too many messages")
                continue  # until the connection has closed
            if meant == PING:
                await websocket.send_text(PONG)
            else:
                with suppress(StateUnavailable):  # the client sees no answer, and says it again
                    await self._hub.read_mark(client.user_id, meant)


class EventStream(Response):
    """The answer of `/sse`."""

    def __init__(self, gateway: Gateway, session: Session, last_id: str | None) -> None:
        super().__init__()
        self._gateway = gateway
        self._session = session
        self._last_id = last_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        try:
            await self._gateway.stream(self._session, self._last_id, EventWire(scope, receive, send))
        except Refused as error:
            await web.refusal(error)(scope, receive, send)


def last_id_of(text: str | None) -> str | None:
    """The last id that a client names. Raises Refused."""
    if text is None or text == "":
        return None
    if not is_id(text):
        raise Refused(400, "last_id_invalid", "last_id must be the id of a frame, like 1764471120123-0, or left out")
    return text
