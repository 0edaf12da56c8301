"""However a task ends, somebody owns the notification: a channel that fails in every way, in real workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from notifier import channels
from notifier.notification import Identity
from tests.acceptance.conftest import Site
from tests.support import eventually

CHANNEL = '''
"""A channel that does what its payload says, and notes what it has sent."""
import json, os, pathlib, signal, sys, time
from notifier.channels import Sent

HERE = pathlib.Path(os.environ["DOOMED"])


class Doomed:
    name = "doomed"
    lease_s = 2.0

    def deliver(self, batch):
        for delivery in batch:
            what = json.loads(delivery.notification.body)
            with (HERE / "started").open("a") as file:
                file.write(f"{what}\\n")
            {"fine": int, "error": self.error, "memory": self.memory, "exit": sys.exit, "vanish": self.vanish,
             "killed": self.killed, "hang": self.hang}[what]()
            with (HERE / "sent").open("a") as file:
                file.write(f"{what}\\n")
        return [Sent() for _ in batch]

    def error(self):
        raise KeyError("a plugin's bug")

    def memory(self):
        raise MemoryError

    def vanish(self):
        os._exit(1)

    def killed(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def hang(self):
        time.sleep(3600)
'''


@pytest.fixture
def doomed(make_site: Callable[..., Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site with the channel installed, as a distribution with an entry point is."""
    plugin = tmp_path / "plugin"
    info = plugin / "doomed-1.dist-info"
    info.mkdir(parents=True)
    (plugin / "doomed.py").write_text(CHANNEL)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: doomed\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[notifier.channels]\ndoomed = doomed:Doomed\n")
    monkeypatch.syspath_prepend(str(plugin))
    channels.known.cache_clear()
    site = make_site(user_limit="off")
    site.env |= {"PYTHONPATH": str(plugin), "DOOMED": str(tmp_path)}
    return site


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("fate", ["vanish", "error", "memory", "exit", "killed", "hang"])
def test_it_is_kept_and_others_go_on(doomed: Site, tmp_path: Path, fate: str) -> None:
    from tasks import send_notification

    doomed.beat()
    worker = doomed.worker()
    send_notification.delay("anna", fate, channel="doomed", notification_id="n1")
    for number in range(5):
        send_notification.delay(f"user-{number}", "fine", channel="doomed")
    eventually(lambda: lines(tmp_path / "sent") == ["fine"] * 5, timeout_s=60)
    assert fate in lines(tmp_path / "started")
    assert doomed.counts.delivered == 5
    assert doomed.counts.waiting + doomed.counts.in_flight + doomed.counts.parked == 1
    assert worker.stop() == 0


@pytest.mark.slow
def test_poison_parks_after_five_starts(doomed: Site, tmp_path: Path) -> None:
    """celery/celery#1628: what kills its worker must not do so for ever."""
    from notifier import runtime
    from tasks import send_notification

    doomed.beat()
    doomed.worker()
    send_notification.delay("anna", "killed", channel="doomed", notification_id="n1")
    counts = doomed.settled(1, timeout_s=90)
    assert counts.parked == 1
    assert len(lines(tmp_path / "started")) == 5
    send_notification.delay("bert", "fine", channel="doomed")
    doomed.settled(2)
    eventually(lambda: runtime.get().store.counts().parked == 1, timeout_s=60)
    assert runtime.get().store.missing([Identity("anna", "doomed", "n1")]) == []
