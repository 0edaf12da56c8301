"""Webhooks: one signed POST for each address of a user. Needs the extra `webhook`. See docs/channels.md."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as json_string
from typing import NamedTuple

import httpcore

from notifier.channels import BATCH_S, Delivery, Failed, Outcome, RetryAt
from notifier.channels.addresses import Addresses, merged
from notifier.channels.background import Background
from notifier.channels.breaker import Breakers, breakers
from notifier.channels.outbound import CONCURRENT, Outbound, Refused, Target, target_of
from notifier.channels.replies import outcome_of
from notifier.channels.signing import headers, message_id
from notifier.settings import Settings, networks, signing_keys

LATE_S = 0.75  # beyond that what has answered in time may be read to its end
PER_HOST = 10  # requests to one host at a time, of one batch: a slow one leaves room for the others
HEADERS = [("Content-Type", "application/json"), ("User-Agent", "celery-notifier"), ("Accept", "*/*")]


class _Post(NamedTuple):
    target: Target
    keys: list[bytes]
    message_id: str
    body: bytes


class WebhookChannel:
    """POSTs each notification to the user's URLs, signed by Standard Webhooks. Hosts fail by themselves."""

    name = "webhook"
    lease_s = 10.0
    has_own_breakers = True

    def __init__(
        self,
        settings: Settings | None = None,
        addresses: Addresses | None = None,
        breakers: Breakers = breakers,
    ) -> None:
        settings = settings or Settings()
        self._addresses = addresses or Addresses()
        self._breakers = breakers
        self._timeout_s = settings.webhook_timeout
        self._keys = signing_keys(settings.webhook_secret.get_secret_value()) if settings.webhook_secret else []
        allowed = networks(settings.webhook_allow_networks)
        self._background = Background(lambda: _Parts(Outbound(allowed)))

    def deliver(self, batch: Sequence[Delivery]) -> list[Outcome]:
        """One outcome for each, within seven seconds."""
        until_s = time.monotonic() + BATCH_S
        plans = [self._plan(delivery, until_s) for delivery in batch]
        posts = [step for plan in plans for step in plan if isinstance(step, _Post)]
        if posts:
            left_s = until_s - time.monotonic() + LATE_S + 0.25
            answers = iter(self._background.run(lambda parts: self._post_all(parts, posts, until_s), left_s))
        return [merged([next(answers) if isinstance(step, _Post) else step for step in plan]) for plan in plans]

    # ---- what to send where

    def _plan(self, delivery: Delivery, until_s: float) -> list[_Post | Outcome]:
        """For each address a POST, or what becomes of it without one. Never empty."""
        if time.monotonic() > until_s:
            return [RetryAt("looking up addresses took too long")]
        addresses = self._addresses.of(delivery.notification)
        if not isinstance(addresses, list):
            return [addresses]
        body = frame(delivery)
        return [self._step(address, message_id(delivery), body) for address in addresses]

    def _step(self, address: str, identifier: str, body: bytes) -> _Post | Outcome:
        try:
            target = target_of(address)
            keys = signing_keys(target.fragment) or self._keys
        except Refused as refused:
            return Failed(str(refused))
        except ValueError:
            return Failed(f"{target.where}: what follows # in the address must be a secret, whsec_...")
        if not keys:
            return Failed(f"{target.where}: nothing to sign with; set NOTIFIER_WEBHOOK_SECRET")
        if wait_s := self._breakers.wait_s(_breaker(target)):
            return RetryAt(f"{target.where} failed again and again and is left alone for a while", wait_s)
        return _Post(target, keys, identifier, body)

    # ---- in the event loop

    async def _post_all(self, parts: _Parts, posts: Sequence[_Post], until_s: float) -> list[Outcome]:
        turns: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(PER_HOST))
        answers = await asyncio.gather(
            *(self._in_turn(parts, post, turns[post.target.where], until_s) for post in posts)
        )
        tried: dict[str, list[Outcome]] = defaultdict(list)
        for post, answer in zip(posts, answers, strict=True):
            if answer is not _NOT_TRIED:
                tried[_breaker(post.target)].append(answer)
        for name, outcomes in tried.items():
            self._breakers.record(name, outcomes)
        return answers

    async def _in_turn(self, parts: _Parts, post: _Post, turn: asyncio.Semaphore, until_s: float) -> Outcome:
        outcome: Outcome = _NOT_TRIED
        try:
            async with asyncio.timeout(until_s - time.monotonic()) as limit, turn, parts.turn:
                outcome = RetryAt(f"{post.target.where} had no time left")
                left_s = until_s - time.monotonic()
                limit.reschedule(asyncio.get_running_loop().time() + left_s + LATE_S)
                outcome = await self._post(parts, post, min(self._timeout_s, left_s))
        except TimeoutError:
            pass
        return outcome

    async def _post(self, parts: _Parts, post: _Post, timeout_s: float) -> Outcome:
        now_s, where = time.time(), post.target.where
        signed = headers(post.keys, post.message_id, int(now_s), post.body)
        try:
            status, answered = await parts.outbound.post(post.target, [*HEADERS, *signed], post.body, timeout_s)
        except Refused as refused:
            return Failed(f"{where} {refused}")
        except TimeoutError:
            in_time = f"within {self._timeout_s:g} s" if timeout_s == self._timeout_s else "before its batch had to end"
            return RetryAt(f"{where} did not answer {in_time}")
        except Exception as error:  # of httpcore, TLS, sockets: their texts may quote what the other side sent
            return RetryAt(f"{where}: {_reason(error)}")
        return outcome_of(status, answered, where, time.time())


class _Parts:
    """What one process has once, in its event loop."""

    def __init__(self, outbound: Outbound) -> None:
        self.outbound = outbound
        self.turn = asyncio.Semaphore(CONCURRENT)


def frame(delivery: Delivery) -> bytes:
    """The body: one JSON object, the same at every attempt."""
    n = delivery.notification
    accepted_us = delivery.accepted_us or delivery.granted_us  # 0: sent by task name, accepted just now
    fields = {
        "notification_id": json_string(n.notification_id),
        "user_id": json_string(n.user_id),
        "category": json_string(n.category),
        "accepted_at": f"{accepted_us // 1_000_000}.{accepted_us % 1_000_000:06d}",
        "payload": n.body,
    }
    if delivery.digest:
        fields["digest"] = delivery.digest
    return ("{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}").encode()


def _breaker(target: Target) -> str:
    return f"webhook to {target.where}"


def _reason(error: BaseException) -> str:
    """In our words. httpcore puts what it caught into the arguments of its own."""
    chain = [error]
    while inner := chain[-1].__cause__ or next((a for a in chain[-1].args if isinstance(a, BaseException)), None):
        chain.append(inner)
    known = (words for kind, words in _REASONS.items() if any(isinstance(link, kind) for link in chain))
    return next(known, type(error).__name__)


_REASONS: dict[type[BaseException], str] = {
    socket.gaierror: "its name could not be looked up",
    ssl.SSLCertVerificationError: "its certificate is not valid",
    ssl.SSLError: "TLS failed",
    ConnectionRefusedError: "connection refused",
    httpcore.RemoteProtocolError: "its answer is not HTTP",
}
_NOT_TRIED = RetryAt("not tried: its host was too slow with others of the batch")
