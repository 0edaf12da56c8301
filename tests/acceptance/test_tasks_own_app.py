"""Our tasks in a team's own Celery app, and apps that only send."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from tests.acceptance.conftest import Site
from tests.support import eventually

TEAM = """
import os
from celery import Celery

app = Celery("team", broker=os.environ["NOTIFIER_BROKER_URL"], include=["tasks"])
app.conf.beat_schedule = {"theirs": {"task": "team.tick", "schedule": 0.5}}

@app.task(name="team.tick")
def tick():
    print("their tick")
"""
SEND = """
import threading
from team import app, tick
from tasks import send_notification, send_notifications

print(send_notification.delay("anna", "from their process").id)
thread = threading.Thread(target=lambda: send_notification.delay("anna", "from their thread"))
thread.start()
thread.join()
send_notifications.delay(["anna", "bert"], "to many")
tick.delay()
"""
CHAIN = """
from celery import chain
from team import tick
from tasks import send_notification

chain(tick.si(), send_notification.si("anna", "after")).apply_async()
chain(tick.si(), send_notification.si("bert", "between"), tick.si()).apply_async()
"""
NOTIFY = """
import sys
from notifier import notify
print(notify("anna", "by name", category="like"))
assert "tasks" not in sys.modules
"""
CONF = "import json; from team import app; app.loader.import_default_modules(); app.finalize(); print(json.dumps([%s]))"


@pytest.fixture
def team(make_site: Callable[..., Site]) -> Site:
    """A site with an app of its own, whose limit nobody meets."""
    site = make_site(user_limit="off")
    (site.directory / "team.py").write_text(TEAM)
    return site


@pytest.mark.slow
def test_worker_and_beat_of_a_team_run_our_tasks_too(team: Site) -> None:
    worker = team.worker("--loglevel", "DEBUG", app="team")
    beat = team.beat("--loglevel", "DEBUG", "--schedule", str(team.directory / "theirs"), app="team")
    beat.says("Sending due task notifier-replay").says("Sending due task notifier-sweep").says("due task theirs")
    team.python(SEND)
    team.python(NOTIFY)
    team.settled(5)
    said = ["by name", "from their process", "from their thread", "to many"]
    assert sorted(team.payloads("anna")) == said
    assert team.payloads("bert") == ["to many"]
    worker.says("Task notifier.replay_dead_letters").says("Task team.tick").says("Task notifier.probe")
    assert "gevent" not in worker.text
    assert (beat.stop(), worker.stop()) == (0, 0)
    assert "Traceback" not in worker.text + beat.text


@pytest.mark.slow
def test_in_a_chain_ours_comes_last(team: Site) -> None:
    (team.directory / "team.py").write_text(f"{TEAM}app.conf.task_inherit_parent_priority = True\n")
    worker = team.worker(app="team")
    team.python(CHAIN)
    eventually(lambda: [frame["payload"] for frame in team.frames("anna")] == ["after"])
    worker.says("chain: cannot be carried")
    assert team.frames("bert") == []


@pytest.mark.slow
def test_a_worker_kept_to_their_queue_takes_none_of_ours(team: Site, broker: Redis) -> None:
    worker = team.worker("--queues", "celery", app="team")
    team.python(SEND)
    worker.says("their tick")
    assert (broker.llen("notifier.normal"), broker.llen("notifier.bulk")) == (2, 1)
    assert "notifier.send_notification[" not in worker.text


def test_nothing_of_their_configuration_is_changed(team: Site) -> None:
    asked = [
        "app.conf.task_queues", "app.conf.worker_prefetch_multiplier", "app.conf.task_acks_late",
        "app.conf.broker_transport_options", "list(app.conf.beat_schedule)", "app.conf.beat_scheduler",
        "app.conf.task_serializer", "app.conf.task_ignore_result",
    ]  # fmt: skip
    with_ours = json.loads(team.python(CONF % ", ".join(asked)))
    (team.directory / "team.py").write_text(TEAM.replace('include=["tasks"]', "include=[]"))
    assert with_ours == json.loads(team.python(CONF % ", ".join(asked)))


@pytest.mark.slow
def test_a_team_may_schedule_the_replay_itself(team: Site) -> None:
    own = 'app.conf.beat_schedule = {"replay": {"task": "notifier.replay_dead_letters", "schedule": 0.3}}\n'
    (team.directory / "team.py").write_text(TEAM + own)
    beat = team.beat("--loglevel", "DEBUG", "--schedule", str(team.directory / "theirs"), app="team")
    beat.says("Sending due task replay").says("Sending due task notifier-sweep")
    assert "notifier-replay" not in beat.text


def test_an_app_that_only_sends_needs_nothing_else(site: Site) -> None:
    """No Celery app of theirs, no tasks: by name."""
    notification_id = site.python(NOTIFY)
    site.worker()
    eventually(lambda: site.payloads("anna") == ["by name"], timeout_s=60)
    assert site.frames("anna")[0]["notification_id"] == notification_id


def test_tasks_of_the_same_name_in_the_directory_do_not_get_in_the_way(site: Site, tmp_path: Path) -> None:
    (site.directory / "tasks.py").write_text("raise RuntimeError('theirs')")
    assert site.python("from notifier import notify; print(len(notify('anna', 1)))") == "36"
