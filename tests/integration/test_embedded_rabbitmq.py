"""The RabbitMQ that the tests and the torture run start."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable

import kombu
import psutil
import pytest
from amqp.exceptions import AccessRefused, AMQPError
from kombu.exceptions import KombuError

from notifier.embedded.rabbitmq import RabbitMQ
from tests.support import eventually

pytestmark = pytest.mark.slow

QUORUM = {"x-queue-type": "quorum"}


def publish(url: str, body: str) -> None:
    """Publish to the quorum queue `q`, confirmed."""
    with kombu.Connection(url, transport_options={"confirm_publish": True}) as connection:
        queue = kombu.Queue("q", durable=True, queue_arguments=QUORUM)
        producer = connection.Producer()
        producer.publish(body, routing_key="q", declare=[queue], delivery_mode=2)


def fetch(url: str) -> object:
    """The next message's body, or None."""
    with contextlib.suppress(KombuError, AMQPError, OSError), kombu.Connection(url, connect_timeout=2) as connection:
        message = kombu.Queue("q", durable=True, queue_arguments=QUORUM)(connection.default_channel).get(no_ack=True)
        return message and message.payload
    return None


def test_it_is_closed_to_others_and_confirmed_messages_survive_kill_9(fresh_rabbitmq: Callable[..., RabbitMQ]) -> None:
    server = fresh_rabbitmq()
    with pytest.raises(AccessRefused), kombu.Connection(server.url().replace(server.password, "wrong")) as wrong:
        wrong.connect()
    assert server.password not in " ".join(psutil.Process(server.pid).cmdline())
    assert stat.S_IMODE((server.home / "rabbitmq.conf").stat().st_mode) == 0o600
    ports = {server.port, server._mapper_port, server._distribution_port}
    listening = [at.laddr for at in psutil.net_connections("tcp") if at.laddr and at.status == psutil.CONN_LISTEN]
    ours = [address for address in listening if address.port in ports]
    assert {address.port for address in ours} == ports
    assert {address.ip for address in ours} <= {"127.0.0.1", "::1"}

    publish(server.url(), "first")
    server.restart()  # killed in the first seconds of a new queue, 3.10 leaves that queue without a leader for ever
    assert eventually(lambda: fetch(server.url()), timeout_s=60) == "first"
    publish(server.url(), "kept")
    server.kill()
    assert not server.running
    server.restart()
    assert eventually(lambda: fetch(server.url()), timeout_s=60) == "kept"

    server.freeze()
    assert fetch(server.url()) is None
    server.thaw()
    server.stop()
    assert not server.running
