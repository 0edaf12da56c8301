"""What the gateway's tests share: a real gateway in a thread, a writer of feeds, a client's view."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any, NamedTuple

from redis import Redis
from websockets.sync.client import ClientConnection, connect

from notifier.gateway.auth import token_for
from notifier.gateway.server import PING_S, listen, server
from notifier.redis import keys
from notifier.settings import Settings
from tests.support import eventually


class Writer:
    """Writes a user's feed exactly as lua/deliver.lua does."""

    def __init__(self, url: str, length: int = 50) -> None:
        self._client = Redis.from_url(url)
        self._length = length
        self._seq = 0

    def send(self, user_id: str, payload: Any = None, *, publish: bool = True) -> str:
        """Add one entry and publish it; `publish=False` is a push that got lost. Returns the entry's id."""
        self._seq += 1
        key = keys.user_key("feed", user_id, "websocket")
        body = json.dumps(self._seq if payload is None else payload)
        rest = (
            f'"notification_id":"n{self._seq}","seq":{self._seq},"category":"like",'
            f'"accepted_at":1764471120.123456,"granted_at":1764471120.125001,"payload":{body}}}'
        )
        before: Any = self._client.xrevrange(key, count=1)
        previous = before[0][0].decode() if before else "0-0"
        stream_id: Any = self._client.xadd(key, {"f": rest}, maxlen=self._length, approximate=False)
        entry: str = stream_id.decode()
        if publish:
            self._client.publish(key, f'{entry} {previous} {{"id":"{entry}",{rest}')
        return entry


class Answer(NamedTuple):
    """What came back; headers by lower-case name."""

    status: int
    headers: dict[str, str]
    text: str


class Running:
    """A gateway that listens on a free port of the loopback address."""

    def __init__(self, settings: Settings, *, ping_s: float = PING_S, port: int = 0) -> None:
        self.settings = settings
        self.server = server(settings, ping_s=ping_s)
        listener = listen("127.0.0.1", port)
        self.port: int = listener.getsockname()[1]
        self._thread = threading.Thread(target=self.server.run, args=([listener],), daemon=True)

    def get(self, path: str, headers: dict[str, str] | None = None, method: str = "GET", body: str = "") -> Answer:
        """One HTTP request."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body or None, headers or {})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read().decode())
        finally:
            connection.close()

    def wait_until_ready(self) -> None:
        """Until it hears the pushes of state Redis."""
        eventually(lambda: self.get("/readyz").status == 200)

    def token(self, user_id: str, ttl_s: float = 60) -> str:
        """Lets a user in."""
        return token_for(self.settings, user_id, ttl_s)

    @contextmanager
    def connect(self, user_id: str, last_id: str | None = None, **options: Any) -> Iterator[ClientConnection]:
        """A websocket of the user's; `token` and `headers` may be given."""
        token = options.pop("token", None) or self.token(user_id)
        headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})}
        query = f"?last_id={last_id}" if last_id else ""
        options = {"max_queue": None, "close_timeout": 2} | options
        url = f"ws://127.0.0.1:{self.port}/ws{query}"
        with connect(url, additional_headers=headers, proxy=None, **options) as connection:
            yield connection

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._thread.is_alive()

    @contextmanager
    def running(self) -> Iterator[Running]:
        """Started, and stopped at the end."""
        self._thread.start()
        try:
            eventually(lambda: self.server.started)
            yield self
        finally:
            self.server.should_exit = True
            self._thread.join(15)
            assert not self._thread.is_alive(), "the gateway did not stop"


def receive(connection: ClientConnection, timeout_s: float = 5) -> Any:
    """The next message, parsed. Raises TimeoutError."""
    return json.loads(connection.recv(timeout=timeout_s))


def payloads(connection: ClientConnection, count: int, timeout_s: float = 10) -> list[Any]:
    """The payloads of the next frames, whatever is said between them."""
    found: list[Any] = []
    while len(found) < count:
        message = receive(connection, timeout_s)
        if "payload" in message:
            found.append(message["payload"])
    return found


class Events:
    """A client of `/sse`."""

    def __init__(self, gateway: Running, user_id: str, last_id: str | None = None, **options: Any) -> None:
        self._connection = HTTPConnection("127.0.0.1", gateway.port, timeout=10)
        headers = {"Authorization": f"Bearer {options.get('token') or gateway.token(user_id)}"}
        if last_id:
            headers["Last-Event-ID"] = last_id
        self._connection.request("GET", "/sse", headers=headers)
        self.response = self._connection.getresponse()

    def event(self) -> dict[str, str]:
        """The next event: `event`, `id`, `data`, as far as it has them. An empty one at the end."""
        found: dict[str, str] = {}
        for line in iter(self.response.readline, b""):
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if not name and "data" in found:
                return found
            if name in ("event", "id", "data"):
                found[name] = value
        return {}

    def close(self) -> None:
        """Leave."""
        self.response.close()
        self._connection.close()
