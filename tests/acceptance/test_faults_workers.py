"""Workers that are killed and asked to end in every way, on both brokers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from notifier import channels
from notifier.embedded.rabbitmq import RabbitMQ
from tasks import send_notification
from tests.acceptance.conftest import Site
from tests.support import eventually

pytestmark = pytest.mark.slow

MakeSite = Callable[..., Site]
BACK_S = 20  # the promise


@pytest.fixture(params=["redis", "rabbitmq"])
def site_on(request: pytest.FixtureRequest, make_site: MakeSite) -> Iterator[Site]:
    """A site without limits on each broker."""
    if request.param == "redis":
        yield make_site(user_limit="off")
    else:
        yield make_site(user_limit="off", broker_url=request.getfixturevalue("rabbitmq_url"))


def each_once(site: Site, count: int) -> bool:
    return [site.payloads(f"user-{number}") for number in range(count)] == [[number] for number in range(count)]


def test_a_worker_killed_with_messages_in_hand(site_on: Site) -> None:
    """celery/celery#4984, #3541: back within seconds, not after the visibility timeout of an hour."""
    site_on.beat()
    worker = site_on.worker()
    send_notification.delay("user-0", 0)
    site_on.settled(1)
    for child in psutil.Process(worker.pid).children():
        child.suspend()  # they take messages into their hands, and no further
    for number in range(1, 10):
        send_notification.delay(f"user-{number}", number)
    worker.says(f"Task notifier.send_notification[{_id_of(worker.text)}")
    eventually(lambda: worker.text.count("send_notification[") >= 4)  # one done: received, succeeded; two in hand
    worker.kill()
    site_on.worker()
    site_on.settled(10, timeout_s=BACK_S)
    assert each_once(site_on, 10)


def _id_of(text: str) -> str:
    return text.split("notifier.send_notification[", 1)[1].split("]", 1)[0]


@pytest.mark.parametrize("how", ["TERM", "QUIT", "INT", "KILL"])
def test_a_worker_ends_under_load(site_on: Site, how: str) -> None:
    """celery/celery#4354, #3802: warm, cold or not at all asked; another worker has what it left."""
    site_on.beat()
    workers = [site_on.worker(), site_on.worker()]
    for number in range(120):
        send_notification.delay(f"user-{number}", number)
        if number == 60:
            if how == "KILL":
                workers[0].kill()
            else:
                os.kill(workers[0].pid, getattr(signal, f"SIG{how}"))
    workers[0].ended(60)
    site_on.settled(120, timeout_s=3 * BACK_S)  # a claim may run out twice; how soon is tested above
    assert each_once(site_on, 120)


def test_a_worker_that_is_busy_writing_hears_quit(make_site: MakeSite) -> None:
    """Celery's own handler leaves one in a few of these hanging."""
    site = make_site(user_limit="off")
    for number in range(8):
        worker = site.worker()
        for _ in range(60):
            send_notification.delay("anna", number)
        os.kill(worker.pid, signal.SIGQUIT)
        send_notification.delay("anna", number)
        worker.ended(60)


def test_rabbitmq_restarts_under_load(make_site: MakeSite, fresh_rabbitmq: Callable[..., RabbitMQ]) -> None:
    """celery/celery#9250: the worker lives on, or its supervisor has it back."""
    broker = fresh_rabbitmq()
    site = make_site(broker_url=broker.url(), user_limit="off")
    site.beat()
    worker = site.worker()
    for number in range(60):
        send_notification.delay(f"user-{number}", number)
        if number == 30:
            broker.kill()
    broker.restart()
    site.settled(60, timeout_s=60)
    assert each_once(site, 60)
    assert worker.stop() == 0


DEAF = '''
"""A channel that does not listen: it goes on whatever it is told, until it is killed."""
import os, pathlib, time
from notifier.channels import Sent

class Deaf:
    name = "deaf"
    lease_s = 2.0

    def deliver(self, batch):
        if "deaf" in batch[0].notification.body:
            with pathlib.Path(os.environ["DEAF"]).open("a") as file:
                file.write("x")
            while True:
                try:
                    time.sleep(3600)
                except Exception:
                    pass
        return [Sent() for _ in batch]
'''


def test_a_channel_that_outlasts_the_hard_time_limit(
    make_site: MakeSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """celery/celery#9596: the killed task's message is neither acknowledged nor held until the worker ends."""
    plugin, started = tmp_path / "plugin", tmp_path / "started"
    info = plugin / "deaf-1.dist-info"
    info.mkdir(parents=True)
    (plugin / "deaf.py").write_text(DEAF)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deaf\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[notifier.channels]\ndeaf = deaf:Deaf\n")
    monkeypatch.syspath_prepend(str(plugin))
    channels.known.cache_clear()
    site = make_site(user_limit="off")
    site.env |= {"PYTHONPATH": str(plugin), "DEAF": str(started)}
    site.beat()
    worker = site.worker()
    send_notification.delay("anna", "deaf", channel="deaf")
    eventually(lambda: started.exists() and len(started.read_text()) == 2, timeout_s=60)
    send_notification.delay("bert", "fine", channel="deaf")
    eventually(lambda: site.counts.delivered == 1)
    counts = site.counts
    assert counts.waiting + counts.in_flight + counts.parked == 1
    worker.kill()
