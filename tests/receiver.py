"""A real receiver of webhooks on loopback, which a test may make misbehave."""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from notifier.channels import Delivery, Outcome
from notifier.channels.webhook import WebhookChannel
from notifier.notification import Notification

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Received(NamedTuple):
    """One request, as it came."""

    line: str
    headers: dict[str, str]
    body: bytes


Make = Callable[..., WebhookChannel]  # of the fixture `make_webhook`: addresses, settings
Script = Callable[[Received, socket.socket], None]


class Receiver:
    """Answers each request by `script(request, connection)`; keeps connections open. `connections` counts them."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self._listener = socket.create_server((host, port), backlog=256)
        self._tls = tls
        self.host, self.port = self._listener.getsockname()[:2]
        self.requests: list[Received] = []
        self.connections = 0
        self.script: Script = answers(OK)
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, path: str = "/hook") -> str:
        return f"http://{self.host}:{self.port}{path}"

    def close(self) -> None:
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # a client that went, or trusts no certificate of ours
            if self._tls:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._open.append(connection)
            reader = connection.makefile("rb")
            while line := reader.readline():
                headers = {}
                while (header := reader.readline()) not in (b"\r\n", b""):
                    name, _, value = header.decode("latin-1").partition(":")
                    headers[name.lower()] = value.strip()
                body = reader.read(int(headers.get("content-length", "0")))
                request = Received(line.decode("latin-1").strip(), headers, body)
                self.requests.append(request)
                self.script(request, connection)
        connection.close()


def answers(raw: bytes) -> Script:
    """Always these bytes."""
    return lambda _, connection: connection.sendall(raw)


def says(status: int, *headers: str) -> Script:
    """Always this status, with no body."""
    lines = [f"HTTP/1.1 {status} Said", "Content-Length: 0", *headers, "", ""]
    return answers("\r\n".join(lines).encode("latin-1"))


@contextlib.contextmanager
def receiver(host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """A receiver, closed in the end."""
    made = Receiver(host, port, tls)
    try:
        yield made
    finally:
        made.close()


def a_delivery(user_id: str = "anna", payload: object = "hello", channel: str = "webhook", **fields: str) -> Delivery:
    """The first attempt at a fresh notification."""
    notification = Notification.create(user_id, payload, channel=channel, notification_id=fields.pop("id", None))
    return Delivery(notification, 1_764_471_118_201_000, 1_764_471_118_202_000, 1, **fields)  # type: ignore[arg-type]


def one(channel: WebhookChannel, delivery: Delivery | None = None) -> Outcome:
    """Deliver a single one; its outcome."""
    (outcome,) = channel.deliver([delivery or a_delivery()])
    return outcome
