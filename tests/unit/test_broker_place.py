"""Where a broker is, said without what belongs to a password."""

from __future__ import annotations

import pytest
from kombu import Connection

from notifier.redis.broker import place_of


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("amqp://app:hunter2@rabbit:5673//", "rabbit:5673"),
        ("amqp://app:hunter2@rabbit//", "rabbit"),
        ("redis://:hunter2@10.0.0.1:6379/1", "10.0.0.1:6379"),
        ("amqp://app:12/34@rabbit//", "its URL (percent-encode special characters of the password)"),
    ],
)
def test_host_and_port_and_nothing_of_a_password(url: str, place: str) -> None:
    assert place_of(Connection(url)) == place
