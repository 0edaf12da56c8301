"""HTTP to strangers: the address is checked where the connection is made, every wait has an end.

A host name is looked up once, and the connection goes to the very address that was checked, so an answer that changes
in between (DNS rebinding) changes nothing. TLS and the Host header keep the name. No proxy of the environment is used,
no redirect followed, no compressed body unpacked, no cookie kept.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import ssl
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import httpcore
import httpx

from notifier.channels.networks import permitted
from notifier.settings import Network

CONCURRENT = 100  # requests of one process at a time
LOOKUPS = 32  # host names looked up at a time
LOOKUPS_OF_A_DOMAIN = 8
TRIED = 3  # addresses of one host
IDLE_S = 30.0  # how long a connection is kept for the next request
MOST_BODY_BYTES = 64 * 1024  # of an answer; nothing is done with it, but a connection read to its end can be kept
BODY_S = 0.5


class Refused(Exception):
    """It must not be sent there. The text names the host at most."""


class Target(NamedTuple):
    """A URL that was found good. `where` (host and port) is all of it that may be shown."""

    url: httpcore.URL
    where: str
    headers: list[tuple[str, str]]
    fragment: str


def target_of(url: str) -> Target:
    """Read a URL. Raises Refused, which shows none of it: path and user info may hold secrets."""
    if any(character <= " " or character == "\x7f" for character in url):
        raise Refused("the address has spaces or control characters in it")
    try:
        return _target(httpx.URL(url))
    except (httpx.InvalidURL, ValueError):  # some of its parts are looked at when they are first asked for
        raise Refused("the address is no URL") from None


def _target(parsed: httpx.URL) -> Target:
    where = parsed.netloc.decode("ascii")
    if parsed.scheme not in ("http", "https") or not parsed.host or not 0 <= (parsed.port or 0) < 65_536:
        raise Refused("the address must begin with https:// or http://, a host, and maybe a port")
    headers = [("Host", where)]
    if parsed.userinfo:
        login = base64.b64encode(f"{parsed.username}:{parsed.password}".encode()).decode()
        headers.append(("Authorization", f"Basic {login}"))
    raw = httpcore.URL(scheme=parsed.raw_scheme, host=parsed.raw_host, port=parsed.port, target=parsed.raw_path)
    return Target(raw, where, headers, parsed.fragment)


class _Lookups:
    """Looks up host names, in threads that a name server may hold for long after whoever asked has given up.

    One lookup of a name serves all who ask meanwhile, and the names of one domain have a share of the threads: a name
    server that hangs leaves room for others.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS, "notifier-lookup")
        self._running: dict[str, asyncio.Future[Any]] = {}
        self._lines: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def addresses(self, host: str, port: int) -> list[str]:
        """Each once. Raises OSError, or UnicodeError for a label too long for the resolver's encoding."""
        if host not in self._running:
            domain = ".".join(host.rstrip(".").rsplit(".", 2)[-2:])
            line = self._lines.setdefault(domain, asyncio.Semaphore(LOOKUPS_OF_A_DOMAIN))
            await line.acquire()
            if host in self._running:  # somebody else's turn came first
                line.release()
            else:
                self._begin(host, port, line)
        found = await asyncio.shield(self._running[host])
        return list(dict.fromkeys(str(info[4][0]) for info in found))

    def _begin(self, host: str, port: int, line: asyncio.Semaphore) -> None:
        def ended(looking: asyncio.Future[Any]) -> None:
            looking.exception()  # nobody may be left to whom it matters
            del self._running[host]
            line.release()

        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        self._running[host] = asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        self._running[host].add_done_callback(ended)


class _Guard(httpcore.AsyncNetworkBackend):
    """Makes connections to addresses that are permitted, and to no others."""

    def __init__(self, allowed: Sequence[Network], lookups: _Lookups) -> None:
        self._allowed, self._lookups = allowed, lookups
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            addresses = await self._lookups.addresses(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(error) from error
        good = [address for address in addresses if permitted(address, self._allowed)][:TRIED]
        if not good:
            raise Refused("is at no public address; NOTIFIER_WEBHOOK_ALLOW_NETWORKS allows others")
        share_s = None if timeout is None else timeout / len(good)
        for address in good[:-1]:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await self._backend.connect_tcp(address, port, share_s, local_address, socket_options)
        return await self._backend.connect_tcp(good[-1], port, share_s, local_address, socket_options)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise Refused("is a socket of this machine")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Outbound:
    """Connections, kept for the next request. Made and used within one event loop."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        logging.getLogger("httpcore").setLevel(logging.INFO)  # for debugging it quotes what the other side says
        self._allowed, self._lookups = allowed, _Lookups()

    @cached_property
    def _plain(self) -> httpcore.AsyncConnectionPool:
        return self._pool(None)

    @cached_property
    def _tls(self) -> httpcore.AsyncConnectionPool:
        return self._pool(httpx.create_ssl_context())  # 0.1 s; SSL_CERT_FILE and SSL_CERT_DIR count

    def _pool(self, context: ssl.SSLContext | None) -> httpcore.AsyncConnectionPool:
        return httpcore.AsyncConnectionPool(
            context,
            max_connections=CONCURRENT,
            keepalive_expiry=IDLE_S,
            network_backend=_Guard(self._allowed, self._lookups),
        )

    async def post(
        self, target: Target, headers: Sequence[tuple[str, str]], body: bytes, timeout_s: float
    ) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Status and headers of the answer, which come within `timeout_s`; its body is read for BODY_S at most.

        Raises Refused, TimeoutError, or what httpcore raises.
        """
        pool = self._tls if target.url.scheme == b"https" else self._plain
        async with (
            asyncio.timeout(timeout_s) as deadline,
            pool.stream(
                "POST",
                target.url,
                headers=[*target.headers, *headers, ("Content-Length", str(len(body)))],
                content=body,
                extensions={"timeout": {"connect": timeout_s}},
            ) as response,
        ):
            deadline.reschedule(None)  # it has answered: how long its body takes says nothing about that
            with suppress(TimeoutError, httpcore.NetworkError, httpcore.ProtocolError):
                async with asyncio.timeout(BODY_S):
                    size = 0
                    async for chunk in response.aiter_stream():
                        size += len(chunk)
                        if size > MOST_BODY_BYTES:
                            break
            return response.status, response.headers
