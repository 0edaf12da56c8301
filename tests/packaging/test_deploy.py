"""Alert rules and dashboard are sound, and name only metrics that there are; every metric and alert is documented."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import Metric

from notifier import metrics_dir, tally
from notifier.exposition import Exposition
from notifier.gateway import meters
from notifier.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
OPERATIONS = ROOT / "docs" / "operations.md"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
WHOLE = {"metrics": metrics_dir, "tally": tally, "meters": meters}  # imported: then all that is counted is registered


@pytest.fixture(scope="module")
def rules() -> list[dict[str, Any]]:
    """Every alert."""
    text = (PROMETHEUS / "rules.yml").read_text()
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def queries() -> list[str]:
    """The dashboard's, as Grafana sends them."""
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "dashboard.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(found) > 20
    return [query.replace("$__rate_interval", "1m") for query in found]


@pytest.fixture
def exported(settings: Settings) -> list[Metric]:
    """What a process that does everything exports, with all servers there."""
    with closing(Exposition(settings)) as exposition:
        return [metric for metric in exposition.collect() if metric.name.startswith("notifier_")]


def sample_names(exported: list[Metric]) -> set[str]:
    return {metric.name + suffix for metric in exported for suffix in SUFFIXES[metric.type]}


def named(queries: Iterator[str] | list[str]) -> set[str]:
    return {name for query in queries for name in re.findall(r"\bnotifier_\w+", query)}


def promtool(*arguments: object) -> str:
    """Its output. Skips where it is not installed (Debian: prometheus), fails where it finds something wrong."""
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool (Debian: apt-get install prometheus)")
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_configuration_and_the_rules_are_sound() -> None:
    assert "SUCCESS" in promtool("check", "config", PROMETHEUS / "prometheus.yml")
    assert "FAILED" not in promtool("check", "rules", PROMETHEUS / "rules.yml")


def test_each_alert_fires_when_it_should_and_not_before(rules: list[dict[str, Any]]) -> None:
    promtool("test", "rules", PROMETHEUS / "rules_test.yml")
    cases = [case for test in yaml.safe_load((PROMETHEUS / "rules_test.yml").read_text())["tests"]
             for case in test["alert_rule_test"]]  # fmt: skip
    for rule in rules:
        expected = [bool(case["exp_alerts"]) for case in cases if case["alertname"] == rule["alert"]]
        assert set(expected) == {True, False}, rule["alert"]


def test_the_dashboards_queries_are_sound(queries: list[str], tmp_path: Path) -> None:
    rules = [{"record": f"query_{number}", "expr": query} for number, query in enumerate(queries)]
    (file := tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(queries)} rules found" in promtool("check", "rules", file)


def test_rules_and_dashboard_name_only_metrics_that_there_are(
    rules: list[dict[str, Any]], queries: list[str], exported: list[Metric]
) -> None:
    assert named([rule["expr"] for rule in rules]) | named(queries) <= sample_names(exported)


def test_every_metric_is_in_the_documentation_with_its_type_and_labels(exported: list[Metric]) -> None:
    rows = re.findall(r"^\| `(notifier_\w+)` \| (\w+) \|([^|]*)\|", OPERATIONS.read_text(), re.MULTILINE)
    documented = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert len(documented) == len(rows), "a metric is listed twice"
    names = {metric.name + ("_total" if metric.type == "counter" else ""): metric for metric in exported}
    assert set(documented) == set(names)
    for name, metric in names.items():
        kind, labels = documented[name]
        assert kind == metric.type, name
        for sample in metric.samples:
            assert set(sample.labels) - {"le"} == labels, name


def test_every_alert_has_its_runbook(rules: list[dict[str, Any]]) -> None:
    headings = re.findall(r"^### (\w+)$", OPERATIONS.read_text(), re.MULTILINE)
    assert headings == [rule["alert"] for rule in rules]
    for rule in rules:
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}


def test_no_label_is_a_persons_or_grows_with_traffic(exported: list[Metric]) -> None:
    labels = {label for metric in exported for sample in metric.samples for label in sample.labels}
    assert labels <= {"channel", "code", "end", "kind", "le", "level", "queue", "reason", "server", "source", "state",
                      "transport", "via", "what"}  # fmt: skip
