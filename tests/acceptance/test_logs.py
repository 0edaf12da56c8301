"""What worker, beat and gateway log while everything goes wrong: whom it is about, and never what it says."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier import channels
from notifier.embedded.process import signal_tree
from notifier.wire import SEND_NOTIFICATION
from tasks import send_notification, send_notifications
from tests.acceptance.conftest import Process, Site, message
from tests.support import eventually

CANARY = "canary-7f3a"
CHANNEL = '''
import os, pathlib, signal
from notifier.channels import Failed


class Doomed:
    """Fails in every way, and tells what it was given wherever it can."""
    name = "doomed"
    lease_s = 2.0

    def deliver(self, batch):
        body = batch[0].notification.body
        if "kill" in body:
            os.kill(os.getpid(), signal.SIGKILL)
        if "raise" in body:
            raise KeyError(body)
        return [Failed("no such address") for _ in batch]
'''
UNKNOWN = "notifier.of_a_newer_version"


@pytest.fixture
def doomed(make_site: Callable[..., Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site where a channel is installed that fails."""
    info = tmp_path / "plugin" / "doomed_logs-1.dist-info"
    info.mkdir(parents=True)
    (info.parent / "doomed_logs.py").write_text(CHANNEL)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: doomed-logs\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[notifier.channels]\ndoomed = doomed_logs:Doomed\n")
    monkeypatch.syspath_prepend(str(info.parent))
    channels.known.cache_clear()
    site = make_site(user_limit="12/min burst 2", local_bucket="off")
    site.env["PYTHONPATH"] = str(info.parent)
    return site


def go_through_it(site: Site, broker: Redis, **env: str) -> list[Process]:
    """Denials, a dead channel, poison, an unknown task, what cannot be decoded or read, bad settings."""
    worker, beat = site.worker("--loglevel", "DEBUG", **env), site.celery("beat", **env)
    said = {"text": CANARY}
    for number in range(4):
        send_notification.delay("anna", said, notification_id=f"denied-{number}")
    send_notifications.delay(["bert", "cleo"], said, notification_id="to-many")
    send_notification.delay("dora", said, channel="doomed", notification_id="failed-1")
    send_notification.delay("dora", said | {"do": "raise"}, channel="doomed", notification_id="raised-1")
    send_notification.delay("emil", said | {"do": "kill"}, channel="doomed", notification_id="poison-1")
    body = base64.b64encode(json.dumps([[], {"user_id": "anna", "body": CANARY}, {}]).encode()).decode()
    for task, content_type, text in (
        (UNKNOWN, "application/json", body),
        (SEND_NOTIFICATION, "application/x-python-serialize", body),
        (SEND_NOTIFICATION, "application/json", body),
        (SEND_NOTIFICATION, "application/json", base64.b64encode(b"not json " + CANARY.encode()).decode()),
    ):
        broker.lpush("notifier.normal", message(task, content_type, text))
    worker.says(UNKNOWN).says("cannot be read").says("Refusing to deserialize").says("poison")
    eventually(lambda: site.counts.parked == 2 and site.counts.delivered >= 4, timeout_s=60)
    bad = site.celery("worker", NOTIFIER_DATABASE_URL=f"mysql://app:{CANARY}@db/app", **env)
    assert bad.ended(60) != 0
    assert (beat.stop(), worker.stop()) == (0, 0)
    return [worker, beat, bad]


def keeps_quiet(site: Site, processes: list[Process]) -> None:
    urls = (site.settings.broker_url, site.settings.redis_url, site.settings.limiter_url, site.settings.database_url)
    passwords = {url.partition("://")[2].partition("@")[0].partition(":")[2] for url in urls}
    secret_base64 = base64.b64encode(CANARY.encode()).decode()[:8]
    for process in processes:
        for word in {CANARY, "canary", secret_base64, *passwords}:
            assert word not in process.text, f"{word} is in {process.log}"


@pytest.mark.slow
def test_text_says_whom_it_is_about_and_no_payload(doomed: Site, broker: Redis) -> None:
    worker, *others = go_through_it(doomed, broker)
    keeps_quiet(doomed, [worker, *others])
    anna = '[user_id="anna" channel="websocket" notification_id="denied-0"]'
    assert any("succeeded in" in line and anna in line for line in worker.text.splitlines())
    assert 'parked (delivery_failed) [user_id="dora" channel="doomed" notification_id="failed-1"]' in worker.text
    assert 'parked (poison) [user_id="emil" channel="doomed" notification_id="poison-1"]' in worker.text
    assert 'KeyError [user_id="dora" channel="doomed" notification_id="raised-1"]' in worker.text


@pytest.mark.slow
def test_json_is_one_object_a_line_with_the_same_fields(doomed: Site, broker: Redis) -> None:
    worker, beat, bad = go_through_it(doomed, broker, NOTIFIER_LOG_FORMAT="json")
    keeps_quiet(doomed, [worker, beat, bad])
    lines: list[dict[str, Any]] = [json.loads(line) for line in worker.text.splitlines() if line.startswith("{")]
    for line in lines:
        assert {"time", "level", "logger", "event", "process"} <= line.keys()
        assert "\n" not in line["time"] + line["level"]
    assert [json.loads(line)["level"] for line in beat.text.splitlines() if line.startswith("{")]

    def about(event: str, **fields: object) -> bool:
        return any(event in line["event"] and fields.items() <= line.items() for line in lines)

    dora = {"user_id": "dora", "channel": "doomed", "notification_id": "failed-1"}
    assert about("parked (delivery_failed)", **dora)
    assert about("received", notification_id="denied-0", task=SEND_NOTIFICATION)
    assert about("succeeded in", user_id="anna", notification_id="denied-0", task=SEND_NOTIFICATION)
    assert about("succeeded in", notification_id="to-many", recipients=2)
    assert about("degraded: channel_doomed", what="channel_doomed", notification_id="raised-1")
    assert about("cannot be read", what="unreadable_message", notification_id=f"id-of-{SEND_NOTIFICATION}")
    assert not any("user_id=" in line["event"] for line in lines if "user_id" in line), "fields stand beside the event"


TEAM = """
import logging.config, os
from celery import Celery, signals

app = Celery("team", broker=os.environ["NOTIFIER_BROKER_URL"], include=["tasks"])
SETUP
"""
THEIRS = """
@signals.setup_logging.connect
def theirs(**_):
    logging.basicConfig(level="INFO", format="THEIRS %(message)s")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setup", "log_format", "begins"), [("", "json", "{"), ("", "text", "["), (THEIRS, "json", "THEIRS")]
)
def test_a_teams_logging_is_its_own_unless_it_asks(site: Site, setup: str, log_format: str, begins: str) -> None:
    (site.directory / "team.py").write_text(TEAM.replace("SETUP", setup))
    worker = site.worker(app="team", NOTIFIER_LOG_FORMAT=log_format)
    (ready,) = [line for line in worker.text.splitlines() if " ready." in line]
    assert ready.startswith(begins)
    signal_tree(worker.pid, signal.SIGKILL)


@pytest.mark.slow
def test_up_and_all_that_it_starts_log_json_from_the_first_line(tmp_path: Path) -> None:
    log = tmp_path / "up.log"
    up = Process(
        [sys.executable, "-P", "-m", "notifier", "up"], log, {**os.environ, "NOTIFIER_LOG_FORMAT": "json"}, tmp_path
    )
    try:
        up.says("ready after")
        assert up.stop() == 0
    finally:
        up.kill()
    members = {path.stem: path.read_text() for path in (tmp_path / ".notifier" / "log").glob("*.log")}
    assert {"worker-1", "beat", "gateway"} <= members.keys()
    for text in (up.text, *members.values()):
        said = [line for line in text.splitlines() if line.strip() and "shutdown (MainProcess)" not in line]
        assert said and all("event" in json.loads(line) for line in said)
        assert "token=" not in text
