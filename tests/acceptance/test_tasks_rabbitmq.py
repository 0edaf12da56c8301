"""RabbitMQ as the broker: quorum queues, confirms, and the same promises."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tasks import send_notification, send_notifications
from tests.acceptance.conftest import Site

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_from_delay_to_the_feed_at_once_and_later(make_site: Callable[..., Site], rabbitmq_url: str, pool: str) -> None:
    site = make_site(broker_url=rabbitmq_url)
    beat, worker = site.beat(), site.worker(pool=pool)
    for number in range(8):
        send_notification.delay("anna", number)
    send_notifications.delay([f"user-{n}" for n in range(150)], {"for": "all"})
    counts = site.settled(158)
    assert counts.replayed == counts.deferrals > 0
    assert sorted(site.payloads("anna")) == list(range(8))
    assert [site.payloads(f"user-{n}") for n in range(150)] == [[{"for": "all"}]] * 150
    assert (beat.stop(), worker.stop()) == (0, 0)
    assert "Traceback" not in worker.text + beat.text


def test_a_worker_frozen_and_killed_with_messages_in_hand(make_site: Callable[..., Site], rabbitmq_url: str) -> None:
    site = make_site(broker_url=rabbitmq_url, user_limit="off")
    site.beat()
    frozen = site.worker()
    frozen.freeze()
    for number in range(6):
        send_notification.delay(f"user-{number}", number)
    frozen.kill()
    site.worker()
    site.settled(6)
    assert [site.payloads(f"user-{number}") for number in range(6)] == [[n] for n in range(6)]
