"""The live page's side of the gateway: one websocket, `/live`, for people who run the thing, not for its users.

It shows every user's notifications and can send some, so it needs a token with the claim `live`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from contextlib import suppress
from typing import Any

from celery import Celery
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError
from starlette.websockets import WebSocket, WebSocketDisconnect

from notifier import runtime
from notifier.errors import NotifierError
from notifier.gateway.auth import SUBPROTOCOL, Auth, Refused
from notifier.gateway.river import River
from notifier.gateway.sample import Sampler
from notifier.gateway.web import deny
from notifier.limits.local import LocalBucket
from notifier.notification import Notification, clean_user_id, new_id
from notifier.producer import accept_and_publish
from notifier.redis import keys
from notifier.redis.broker import tls
from notifier.settings import Settings

RIVER_S = 0.1
SAMPLE_S = 0.5
PAUSE_S = 1.0
BURST, FAN_OUT = 40, 100  # notifications one press of a button sends
QUEUED = 50  # messages a viewer may be behind; of more the oldest are dropped, it is only a view

_log = logging.getLogger(__name__)


class Viewer:
    """One open live page."""

    def __init__(self, websocket: WebSocket) -> None:
        self.websocket = websocket
        self.watched = ""
        self.queue: asyncio.Queue[str] = asyncio.Queue(QUEUED)

    def put(self, text: str) -> None:
        """Send it soon."""
        if self.queue.full():
            self.queue.get_nowait()
        self.queue.put_nowait(text)


class Live:
    """Looks at everything while somebody watches, and at nothing else."""

    def __init__(self, settings: Settings, auth: Auth) -> None:
        self._settings = settings
        self._auth = auth
        secure = {"broker_use_ssl": tls(settings.broker_url)}  # kombu by itself verifies no certificate
        self._app = Celery("notifier", broker=settings.broker_url, set_as_current=False, fixups=[], changes=secure)
        self._viewers: set[Viewer] = set()
        self._looking: asyncio.Task[None] | None = None
        self._commands: deque[tuple[str, str]] = deque(maxlen=100)

    async def websocket(self, websocket: WebSocket) -> None:
        """`river` and `sample` messages, until the page is left."""
        offered = websocket.scope["subprotocols"]
        try:
            session = self._auth.check(websocket.headers, offered, scheme=websocket.url.scheme)
            if not session.live:
                raise Refused(403, "not_live", "this token is a user's; the live page needs one with the claim live")
        except Refused as error:
            await deny(websocket, error)
            return
        viewer = Viewer(websocket)
        with suppress(WebSocketDisconnect, RuntimeError, OSError):
            await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
            self._viewers.add(viewer)
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
            sending = asyncio.create_task(self._send(viewer))
            try:
                await self._hear(viewer)
            finally:
                self._viewers.discard(viewer)
                sending.cancel()

    async def _send(self, viewer: Viewer) -> None:
        with suppress(WebSocketDisconnect, RuntimeError, OSError):
            while True:
                await viewer.websocket.send_text(await viewer.queue.get())

    async def _hear(self, viewer: Viewer) -> None:
        """`{"do":"watch"|"one"|"burst","user":..}`, `{"do":"fan-out"}`, `{"do":"stop"|"start","what":..}`."""
        patience = LocalBucket(10, 5.0)
        while True:
            text = await viewer.websocket.receive_text()
            if not patience.consume():
                continue
            try:
                await self._do(viewer, json.loads(text))
            except (ValueError, RecursionError, AttributeError) as error:  # not JSON, not an object, a bad user id
                viewer.put(json.dumps({"type": "problem", "text": str(error)}))
            except NotifierError as error:
                viewer.put(json.dumps({"type": "problem", "text": str(error)}))

    async def _do(self, viewer: Viewer, said: dict[str, Any]) -> None:
        match said.get("do"):
            case "watch":
                viewer.watched = clean_user_id(said.get("user"))
            case "one" | "burst" as kind:
                user_id, count = clean_user_id(said.get("user")), 1 if kind == "one" else BURST
                await asyncio.to_thread(self._send_to, [user_id] * count, kind)
            case "fan-out":
                users = [f"user-{number:03}" for number in range(1, FAN_OUT + 1)]
                await asyncio.to_thread(self._send_to, users, "fan-out")
            case "stop" | "start" as do if isinstance(said.get("what"), str):
                self._commands.append((do, said["what"]))

    def _send_to(self, user_ids: list[str], kind: str) -> None:
        runtime.get(self._settings)  # through which it is accepted
        if kind == "fan-out":  # one payload for all, as send_notifications does: it travels in one message
            text, shared_id = {"text": f"one for {len(user_ids)} users"}, new_id()
            notifications = [
                Notification.create(user_id, text, category=kind, notification_id=shared_id) for user_id in user_ids
            ]
        else:
            notifications = [
                Notification.create(user_id, {"text": f"{kind} {number} of {len(user_ids)}"}, category=kind)
                for number, user_id in enumerate(user_ids, 1)
            ]
        accept_and_publish(self._app, notifications)

    async def _look(self) -> None:
        river = River()
        flowing = asyncio.create_task(self._listen(river))
        sampling = asyncio.create_task(self._sample())
        try:
            while self._viewers:
                await asyncio.sleep(RIVER_S)
                if text := river.take():
                    self._tell(text)
        finally:
            flowing.cancel()
            sampling.cancel()

    def _tell(self, text: str) -> None:
        for viewer in self._viewers:
            viewer.put(text)

    async def _listen(self, river: River) -> None:
        """Every feed's channel at once, on a connection of its own."""
        while True:
            client = AsyncRedis.from_url(self._settings.redis_url, protocol=2)
            try:
                async with client.pubsub() as pubsub:
                    await pubsub.psubscribe(f"{keys.PREFIX}{{*}}:feed:*")
                    async for message in pubsub.listen():
                        if message["type"] == "pmessage":
                            river.add(message["channel"], message["data"])
            except (RedisError, OSError, TimeoutError, RuntimeError) as error:  # RuntimeError: uvloop, closed transport
                _log.info("the live page has lost state Redis (%s)", type(error).__name__)
            finally:
                await client.aclose()
            await asyncio.sleep(PAUSE_S)

    async def _sample(self) -> None:
        sampler = Sampler(self._settings)
        try:
            while True:
                try:
                    while self._commands:
                        await asyncio.to_thread(sampler.command, *self._commands.popleft())
                    watched = sorted({viewer.watched for viewer in self._viewers if viewer.watched})
                    self._tell(json.dumps(await asyncio.to_thread(sampler.sample, watched)))
                except Exception:  # the page is a guest: it shows less, and goes on
                    _log.exception("the live page has no sample")
                await asyncio.sleep(SAMPLE_S)
        finally:
            sampler.close()
