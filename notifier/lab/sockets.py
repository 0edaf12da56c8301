"""Real websocket clients of a gateway, one a user, each resuming where it was."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from notifier.errors import Unavailable
from notifier.lab.account import Frame
from notifier.notification import Identity

AGAIN_S = 0.2
CHANNEL = "websocket"


class Sockets:
    """Listens in a thread of its own. `frames` grows in the order of arrival."""

    def __init__(self, gateway_url: str, tokens: Mapping[str, str]) -> None:
        """`gateway_url` is http://host:port; `tokens` by user id."""
        self.frames: list[Frame] = []
        self._url = gateway_url.replace("http", "ws", 1) + "/ws"
        self._tokens = dict(tokens)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="sockets", daemon=True)
        self._greeted: set[str] = set()
        self._all_greeted = threading.Event()
        self._ending = asyncio.Event()

    def start(self, timeout_s: float = 10.0) -> None:
        """Connect all, and wait until each was greeted. Raises Unavailable."""
        self._thread.start()
        if not self._all_greeted.wait(timeout_s):
            raise Unavailable(f"{len(self._tokens) - len(self._greeted)} clients could not connect to {self._url}")

    def stop(self) -> None:
        """Disconnect all."""
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(5.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen_all())
        self._loop.close()

    async def _listen_all(self) -> None:
        tasks = [asyncio.create_task(self._listen(user_id, token)) for user_id, token in self._tokens.items()]
        await self._ending.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, user_id: str, token: str) -> None:
        last_id = ""
        headers = {"Authorization": f"Bearer {token}"}
        while True:
            try:
                url = f"{self._url}?last_id={last_id}" if last_id else self._url
                async with connect(url, additional_headers=headers, compression=None, proxy=None) as socket:
                    async for text in socket:
                        last_id = self._heard(user_id, json.loads(text)) or last_id
            except (OSError, WebSocketException):
                pass
            await asyncio.sleep(AGAIN_S)

    def _heard(self, user_id: str, message: dict[str, Any]) -> str:
        """Keeps a frame and returns its id."""
        if "type" in message:
            self._greeted.add(user_id)
            if len(self._greeted) == len(self._tokens):
                self._all_greeted.set()
            return str(message["last_id"]) if message["type"] == "hello" else ""
        self.frames.append(
            Frame(
                identity=Identity(user_id, CHANNEL, message["notification_id"]),
                seq=message["seq"],
                accepted_us=round(message["accepted_at"] * 1_000_000),
                granted_us=round(message["granted_at"] * 1_000_000),
                payload=message["payload"],
                received_s=time.monotonic(),
            )
        )
        return str(message["id"])
