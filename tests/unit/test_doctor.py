"""What the doctor makes of what it is told; how it is told is in tests/integration/test_doctor*.py."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from pydantic import SecretStr

import notifier
from notifier.doctor import surroundings
from notifier.doctor.celery_app import celery_app
from notifier.doctor.clocks import Offset, judge, measured
from notifier.doctor.examine import Named, examine
from notifier.doctor.finding import Finding, Level, ok, words
from notifier.doctor.redis_servers import BROKER, LIMITER, STATE, persistence, topology, version
from notifier.settings import Settings


def levels(findings: Iterator[Finding]) -> dict[str, str]:
    found = list(findings)
    assert all(finding.why and finding.mend for finding in found if finding.level != Level.OK)
    return {finding.check: str(finding.level) for finding in found}


@pytest.mark.parametrize(
    ("ahead_s", "within_s", "level"),
    [(0.0, 0.001, "ok"), (-1.9, 0.0, "ok"), (3.0, 2.0, "ok"), (3.0, 0.1, "warning"), (-61.0, 0.1, "problem")],
)
def test_a_clock_that_is_off_is_found_as_far_as_that_is_certain(ahead_s: float, within_s: float, level: str) -> None:
    assert levels(judge({"state": Offset(ahead_s, within_s)})) == {"clock.state": level}


def test_a_clock_is_measured_without_the_time_that_connecting_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("notifier.doctor.clocks.time", SimpleNamespace(time=lambda: now_s[0]))

    def connects() -> Any:
        now_s[0] += 5.0
        return lambda: now_s[0] + 30.0

    assert measured(connects) == Offset(30.0, 0.0)


@pytest.mark.parametrize(
    ("info", "check"),
    [
        ({"redis_version": "6.2.14"}, {"state.version": "problem"}),
        ({"redis_version": "7.0.15"}, {}),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, {}),
    ],
)
def test_redis_6_is_too_old(info: dict[str, Any], check: dict[str, str]) -> None:
    assert levels(version(STATE, info)) == check


def test_only_the_limiter_may_live_in_a_cluster() -> None:
    node = {"cluster_enabled": 1, "role": "master"}
    assert levels(topology(STATE, node)) == {"state.cluster": "problem"}
    assert levels(topology(BROKER, node)) == {"broker.cluster": "problem"}
    assert levels(topology(LIMITER, node)) == {}


def test_an_append_only_file_that_cannot_be_written_is_a_problem() -> None:
    full = {"aof_enabled": 1, "aof_last_write_status": "err"}
    assert levels(persistence(STATE, full, "always")) == {"state.aof": "problem"}


@pytest.mark.parametrize(
    ("secret", "level"),
    [
        (None, "warning"),
        ("x" * 31, "problem"),
        ("ab" * 24, "warning"),
        ("please-change-me-Zk3vQ9wXr7Lm2Tq8YhUo", "warning"),
        ("Zk3vQ9wXr7Lm2Tq8YhUoPbNc5Fd1Gs6J", "ok"),
    ],
)
def test_a_secret_is_judged_and_not_shown(secret: str | None, level: str) -> None:
    (finding,) = surroundings.secret(Settings(secret=None if secret is None else SecretStr(secret)))
    assert finding.level == level
    assert secret is None or secret not in "".join(finding)


def test_a_misspelt_variable_is_named_with_what_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFIER_GRACE_SECOND", "5")
    (finding,) = surroundings.variables()
    assert (finding.check, finding.level) == ("settings.unknown", "warning")
    assert finding.mend == "did you mean NOTIFIER_GRACE_SECONDS?"


def test_a_tasks_module_in_this_directory_is_found(tmp_path: Path) -> None:
    assert levels(surroundings.tasks_module()) == {"tasks.module": "ok"}
    (tmp_path / "tasks.py").write_text("raise RuntimeError('it must not be imported')")
    (finding,) = surroundings.tasks_module()
    assert (finding.level, finding.what) == ("warning", f"`import tasks` gives {tmp_path / 'tasks.py'}")


def test_where_the_gateway_is() -> None:
    assert surroundings.gateway_url(Settings()) is None
    assert surroundings.gateway_url(Settings(gateway_port=8080)) == "http://127.0.0.1:8080"
    assert surroundings.gateway_url(Settings(gateway_host="::", gateway_port=80)) == "http://[::1]:80"


def team(**conf: Any) -> Celery:
    made = Celery("team", broker="redis://shop:hunter2@localhost:6379/0", set_as_current=False)
    made.conf.update({"worker_prefetch_multiplier": 1} | conf)
    made.loader.import_module("tasks")
    made.finalize()
    return made


@pytest.mark.parametrize(
    ("conf", "level", "check"),
    [
        ({}, None, ""),
        ({"broker_transport_options": {"visibility_timeout": 10}}, "problem", "app.time_limits"),
        ({"task_annotations": {"notifier.send_notification": {"time_limit": None}}}, "warning", "app.time_limits"),
        ({"task_annotations": {"*": {"time_limit": 7_200}}}, "problem", "app.time_limits"),
        ({"task_annotations": {"*": {"acks_late": False}}}, "problem", "app.rules"),
        ({"task_annotations": {"*": {"rate_limit": "10/s"}}}, "problem", "app.rules"),
        ({"broker_url": "redis://localhost:6379/7"}, "problem", "app.broker"),
        ({"broker_transport_options": {"global_keyprefix": "shop"}}, "warning", "app.broker"),
        ({"accept_content": ["pickle"]}, "problem", "app.content"),
        ({"task_always_eager": True}, "warning", "app.eager"),
        ({"worker_prefetch_multiplier": 4}, "warning", "app.prefetch"),
        ({"result_backend": "redis://localhost/3", "result_expires": 0}, "warning", "app.results"),
    ],
)
def test_what_a_teams_configuration_does_to_our_tasks(conf: dict[str, Any], level: str | None, check: str) -> None:
    found = list(celery_app(team(**conf), Settings(), name="shop"))
    bad = {finding.check: finding.level for finding in found if finding.level != Level.OK}
    assert bad == ({check: level} if level else {})
    assert "hunter2" not in repr(found)


def test_a_teams_rate_limit_for_all_tasks_is_not_ours() -> None:
    made = team(task_default_rate_limit="6/m")
    ours = {name: task.rate_limit for name, task in made.tasks.items() if name.startswith("notifier.")}
    assert len(ours) == 5 and not any(ours.values())
    assert [f.level for f in celery_app(made, Settings(), name="shop") if f.check == "app.rules"] == [Level.OK]


@pytest.mark.parametrize(
    ("theirs", "shown"),
    [
        ("amqp://shop:hunter2@rabbit", None),
        ("pyamqp://rabbit:5672//", None),
        ("amqp://shop:hunter2@rabbit/orders", "amqp://rabbit:5672/orders"),
        ("redis://:hunter2@rabbit", "redis://rabbit:6379/0"),
        ("amqp://shop:12/hunter2@rabbit//", "its URL (percent-encode special characters of the password)"),
    ],
)
def test_an_app_whose_broker_is_another_one(theirs: str, shown: str | None) -> None:
    ours = Settings(broker_url="amqp://app:hunter3@rabbit:5672//")
    found = [f.what for f in celery_app(team(broker_url=theirs), ours, name="shop") if f.check == "app.broker"]
    assert found == ([f"shop is on {shown}, NOTIFIER_BROKER_URL on amqp://rabbit:5672//"] if shown else [])


def test_an_app_without_our_tasks() -> None:
    made = Celery("team", broker="memory://", set_as_current=False)
    made.finalize()
    for name in [name for name in made.tasks if name.startswith("notifier.")]:
        made.tasks.unregister(name)
    assert levels(celery_app(made, Settings(), name="shop")) == {"app.tasks": "problem"}


def test_a_check_that_hangs_or_raises_hides_no_other() -> None:
    hangs = threading.Event()

    def hanging() -> Iterator[Finding]:
        yield ok("a.first", "said before it hung")
        hangs.wait()

    def raising() -> Iterator[Finding]:
        raise OSError("redis://:hunter2@host/0 is away")
        yield ok("b", "never")

    try:
        found = examine([Named("a", hanging, 0.2), Named("b", raising), Named("c", lambda: iter([ok("c", "well")]))])
    finally:
        hangs.set()
    assert [(f.check, f.level) for f in found] == [
        ("a.first", "ok"),
        ("a", "problem"),
        ("b", "problem"),
        ("c", "ok"),
    ]
    assert "hunter2" not in repr(found)


def test_an_error_of_somebody_elses_is_one_line_without_a_password() -> None:
    assert (
        words(OSError("cannot reach redis://:hunter2@host/0\nand more")) == "OSError: cannot reach redis://:***@host/0"
    )


def test_every_check_is_in_the_docs() -> None:
    root = Path(notifier.__file__).parents[1]
    sources = [*(root / "notifier" / "doctor").glob("*.py"), root / "notifier" / "cli" / "doctor.py"]
    groups = r"\{role\.name\}|\{prefix\}|settings|tasks|packages|broker|database|replay|workers|app|gateway"
    literal = re.compile(rf'"({groups})\.([a-z_]+)"')
    names = {found for source in sources for found in literal.findall(source.read_text())}
    assert len(names) > 25
    text = (root / "docs" / "doctor.md").read_text()
    for group, name in names:
        assert f"`{group.replace('{prefix}', 'app')}.{name}`" in text or f"`.{name}`" in text, (group, name)
