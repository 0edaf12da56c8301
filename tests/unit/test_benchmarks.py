"""What the benchmarks' rows and pictures say about a value and its bar."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from benchmarks import plot
from benchmarks.__main__ import main
from benchmarks.row import percentile, row, spread


@pytest.mark.parametrize(
    ("value", "bar", "met"),
    [(0.8, ">= 0.8", True), (0.79, ">= 0.8", False), (1.5, "<= 1.5", True), (1.6, "<= 1.5", False), (7.0, "", True)],
)
def test_a_row_is_met_by_its_bar(value: float, bar: str, met: bool) -> None:
    assert row("name", value, bar, "command").met is met


def test_a_margin_moves_the_bar_to_the_side_that_is_worse() -> None:
    assert row("name", 0.61, ">= 0.8", "command").within(0.25)
    assert not row("name", 0.59, ">= 0.8", "command").within(0.25)
    assert row("name", 1.8, "<= 1.5", "command").within(0.25)
    assert not row("name", 1.9, "<= 1.5", "command").within(0.25)


def test_what_the_documents_own_up_to_is_the_bar_where_it_is_worse() -> None:
    assert row("name", 0.5, ">= 0.8", "command").within(0.25, known=0.6)
    assert not row("name", 0.5, ">= 0.8", "command").within(0.25, known=0.9)
    assert row("name", 2.4, "<= 1.5", "command").within(0.25, known=2.0)


def test_percentile_and_spread() -> None:
    assert percentile(list(range(100)), 0.99) == 99
    assert percentile([3.0], 0.99) == 3.0
    assert spread([3.0, 1.0, 2.0]) == [1.0, 2.0, 3.0]


def test_pictures_are_whole_and_show_every_name() -> None:
    bars = plot.bars([row("a < b & c", 0.5, ">= 0.8", "x"), row("none", 0.0, "<= 0", "x")])
    curves = plot.lines(
        [plot.Line("one", [(0.0, 0.5), (10.0, 900.0)], plot.GREEN)], title="t", x_label="x", y_label="y"
    )
    assert "a < b & c" in [element.text for element in ElementTree.fromstring(bars).iter()]
    assert "one" in [element.text for element in ElementTree.fromstring(curves).iter()]


def test_without_a_name_nothing_runs_and_the_names_are_told() -> None:
    told = CliRunner().invoke(main, [])
    assert told.exit_code == 0
    assert "--all" in told.output
    for name in ("throughput", "latency", "curve", "limiter", "deadletters", "gateway", "shapes", "cost"):
        assert f"\n  {name} " in told.output


@pytest.mark.parametrize(
    ("arguments", "complaint"), [(["trhoughput"], "no benchmark"), (["cost", "--quick", "--keep"], "--keep")]
)
def test_what_cannot_be_run_is_refused_before_anything_runs(arguments: list[str], complaint: str) -> None:
    refused = CliRunner().invoke(main, arguments)
    assert refused.exit_code == 2
    assert complaint in refused.output
