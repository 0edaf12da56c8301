"""`notifier simulate`: what it says is so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from notifier import Limit, Settings
from notifier.cli import main
from notifier.lab.simulate_report import Report, arrivals, run, suggestion


def simulated(traffic: str = "flood", local: str = "2/s burst 10", processes: int = 4) -> Report:
    settings = Settings(user_limit="2/s burst 10", local_bucket=local)
    return run(settings, traffic, processes, 1_000, 200.0, 30.0)


@pytest.mark.parametrize("traffic", ["even", "skewed", "flood"])
def test_the_excess_is_within_the_theorem(traffic: str) -> None:
    report = simulated(traffic)
    assert report.requests == report.granted + report.deferred
    assert report.requests == pytest.approx(6_000, rel=0.1)
    assert report.excess <= report.allowed == 4


def test_without_a_local_bucket_nothing_is_over_and_all_ask_redis() -> None:
    report = simulated(local="off")
    assert (report.excess, report.allowed, report.local) == (0.0, 0.0, 0)


def test_the_articles_design_is_over_on_the_same_traffic() -> None:
    assert simulated().article_excess > 50


def test_many_quiet_users_are_decided_here() -> None:
    report = run(Settings(local_bucket="100/s burst 100"), "even", 4, 1_000_000, 200.0, 30.0)
    assert report.local / report.requests > 0.95
    assert report.redis_calls_per_s < 150


def test_what_was_deferred_waits_in_its_turn() -> None:
    report = simulated()
    assert 0 < report.delay_p50_s < report.delay_p99_s <= report.delay_max_s


def test_the_same_seed_draws_the_same_traffic() -> None:
    one, two = (list(arrivals("skewed", 4, 1_000, 100.0, 5.0, seed)) for seed in (3, 3))
    assert one == two != list(arrivals("skewed", 4, 1_000, 100.0, 5.0, 4))


@pytest.mark.parametrize("overshoot", [4, 5, 50, 10_000])
def test_the_suggested_bucket_keeps_the_overshoot(overshoot: float) -> None:
    settings = Settings(grace_seconds=30)
    bucket = Limit.parse(suggestion(settings, 4, overshoot).split(" with ")[0])
    if overshoot > 4:
        assert 4 * (1 + bucket.rate * 30) <= overshoot + 1e-6
    assert suggestion(settings, 4, 3).startswith("off")


def test_the_command_shows_it_and_draws_it(tmp_path: Path) -> None:
    arguments = ["simulate", "--processes", "4", "--traffic", "flood", "--seconds", "5", "--rate", "100"]
    picture = tmp_path / "flood.svg"
    shown = CliRunner().invoke(main, [*arguments, "--overshoot", "50", "--plot", str(picture)])
    assert shown.exit_code == 0, shown.output
    assert "decided without Redis" in shown.stdout
    assert picture.read_text().startswith("<svg")
    machine = CliRunner().invoke(main, [*arguments, "--json"])
    assert json.loads(machine.stdout)["excess"] <= 4


def test_a_bad_limit_is_refused_with_the_way_out() -> None:
    result = CliRunner().invoke(main, ["simulate", "--limit", "often"])
    assert result.exit_code == 2
    assert "2/s burst 10" in result.output
