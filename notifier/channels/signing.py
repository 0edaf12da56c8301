"""Signatures of webhooks, by the specification Standard Webhooks (HMAC-SHA256, version v1)."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence

from notifier.channels import Delivery


def message_id(delivery: Delivery) -> str:
    """The same at every attempt, different for any other notification; safe in a header, whatever the ids are."""
    return "msg_" + hashlib.sha256(delivery.idempotency_key.encode()).hexdigest()


def headers(keys: Sequence[bytes], identifier: str, timestamp_s: int, body: bytes) -> list[tuple[str, str]]:
    """The three headers. Each key adds a signature, so a receiver may hold any one of them."""
    signed = f"{identifier}.{timestamp_s}.".encode() + body
    signatures = (base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys)
    return [
        ("webhook-id", identifier),
        ("webhook-timestamp", str(timestamp_s)),
        ("webhook-signature", " ".join(f"v1,{signature}" for signature in signatures)),
    ]
