"""A hundred services (mail, SMS, chat, push) by Apprise URLs. Needs the extra `apprise`. See docs/channels.md."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from apprise import Apprise, NotifyFormat

from notifier import metrics
from notifier.channels import BATCH_S, Delivery, Failed, Outcome, RetryAt, Sent
from notifier.channels.addresses import Addresses, merged
from notifier.channels.breaker import Breakers, breakers
from notifier.settings import Settings

TIMEOUT_S = 5.0  # for one address
CONCURRENT = 16
TEXTS = ("body", "text", "message")  # of a payload; the first that is there is the body
LOGGERS = ("apprise", "urllib3.connectionpool")  # they write URLs, with the secrets in them, and payloads


class AppriseChannel:
    """Sends title and body of a notification to the user's Apprise URLs.

    Apprise says only whether a service took it, so what none of the addresses took is tried again.
    """

    name = "apprise"
    lease_s = 10.0
    has_own_breakers = True

    def __init__(
        self,
        settings: Settings | None = None,
        addresses: Addresses | None = None,
        breakers: Breakers = breakers,
    ) -> None:
        services = (settings or Settings()).apprise_services
        self._services = frozenset(services.lower().replace(",", " ").split())
        self._addresses = addresses or Addresses()
        self._breakers = breakers
        for name in LOGGERS:
            logging.getLogger(name).addFilter(_nothing)

    def deliver(self, batch: Sequence[Delivery]) -> list[Outcome]:
        """One outcome for each, within seven seconds."""
        until_s = time.monotonic() + BATCH_S
        with ThreadPoolExecutor(CONCURRENT, "notifier-apprise") as pool:
            return list(pool.map(lambda delivery: self._send(delivery, until_s), batch))

    def _send(self, delivery: Delivery, until_s: float) -> Outcome:
        addresses = self._addresses.of(delivery.notification)
        if not isinstance(addresses, list):
            return addresses
        title, body = text_of(delivery)
        outcomes = [self._tried(address, title, body, until_s) for address in addresses]
        if Sent() not in outcomes:
            return merged(outcomes)
        # Tried again, it would go once more to those that took it: a service knows no idempotency key.
        for outcome in outcomes:
            if isinstance(outcome, (Failed, RetryAt)):
                metrics.degraded("address_refused", outcome.error)
        return Sent()

    def _tried(self, address: str, title: str, body: str, until_s: float) -> Outcome:
        try:
            return self._send_to(address, title, body, until_s)
        except Exception as error:  # a service's: one address must not fail the batch; its text may hold the address
            return RetryAt(f"apprise: {type(error).__name__}")

    def _send_to(self, address: str, title: str, body: str, until_s: float) -> Outcome:
        service = address.partition(":")[0].lower()
        if self._services and service not in self._services:
            return Failed("the address is of a service that NOTIFIER_APPRISE_SERVICES does not name")
        target = Apprise()
        if not target.add(address) or len(target) != 1:  # it reads several URLs out of one text: of any service
            return Failed("the address is not one Apprise URL, or lacks a part that its service needs")
        digest = hashlib.sha256(address.encode(errors="replace")).hexdigest()[:8]
        breaker = f"apprise to {service} ({digest})"  # its service is known now, so this is no secret
        if wait_s := self._breakers.wait_s(breaker):
            return RetryAt(f"{service} failed again and again and is left alone for a while", wait_s)
        timeout_s = min(TIMEOUT_S, until_s - time.monotonic())
        if timeout_s <= 0:
            return RetryAt("not tried: others of the batch were too slow")
        taken = target.notify(body, title, body_format=NotifyFormat.TEXT, timeout=timeout_s)
        outcome = Sent() if taken else RetryAt(f"{service} did not take it")
        self._breakers.record(breaker, [outcome])
        return outcome


def text_of(delivery: Delivery) -> tuple[str, str]:
    """Title, which may be empty, and body of a payload: its own, or else its JSON text."""
    payload: Any = json.loads(delivery.notification.body)
    title, body = "", payload if isinstance(payload, str) else ""
    if isinstance(payload, dict):
        title = _text(payload.get("title"))
        body = next((text for name in TEXTS if (text := _text(payload.get(name)))), "") or title
    body = body or delivery.notification.body
    others = json.loads(delivery.digest)["count"] - 1 if delivery.digest else 0
    return title, f"{body}\n(and {others} more)" if others > 0 else body


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _nothing(_: logging.LogRecord) -> bool:
    return False
