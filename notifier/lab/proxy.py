"""A TCP proxy on the loopback address that cuts, holds and loses: the network's faults, on purpose."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 65_536


class Proxy:
    """Stands before `target_port` of 127.0.0.1; clients connect to `port`.

    `cut` resets every connection. `hold` lets nothing through until `release`; `hold(replies_only=True)` lets requests
    through and keeps back what the server says to them, which a later `cut` loses. `refuse` resets new connections.
    """

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._requests_pass, self._replies_pass = threading.Event(), threading.Event()
        self._refusing = False
        self._closed = False
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.release()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Reset every connection there is. What was held back is lost."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            _reset(each)

    def hold(self, *, replies_only: bool = False) -> None:
        """Keep back requests and replies, or only replies, from now on."""
        self._replies_pass.clear()
        if not replies_only:
            self._requests_pass.clear()

    def release(self) -> None:
        """Let everything pass again, what was held back first, and new connections too."""
        self._refusing = False
        self._requests_pass.set()
        self._replies_pass.set()

    def refuse(self) -> None:
        """Cut, and let nobody in until `release`."""
        self._refusing = True
        self.cut()

    def close(self) -> None:
        """Cut and end."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
        self._listener.close()
        self.cut()
        self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                _reset(client)
                continue
            try:
                server = socket.create_connection(self._target, timeout=5.0)
            except OSError:
                _reset(client)
                continue
            server.settimeout(None)
            with self._lock:
                self._sockets |= {client, server}
            for source, sink, gate in ((client, server, self._requests_pass), (server, client, self._replies_pass)):
                threading.Thread(target=self._pump, args=(source, sink, gate), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, gate: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                gate.wait()
                sink.sendall(data)
        with self._lock:
            ended = self._sockets & {source, sink}  # none after a cut, which must not say good-bye
            self._sockets -= ended
        for each in ended:  # one side has gone: so does the other
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
                each.close()


def _reset(each: socket.socket) -> None:
    """Close with RST instead of FIN, as a crash or a firewall does. Wakes the threads that wait on it."""
    with contextlib.suppress(OSError):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        each.shutdown(socket.SHUT_RD)
    each.close()
