"""Runs benchmarks: modules here that offer `rows(quick)`. Prints what they measure; writes only where told to.

\b
python -m benchmarks throughput           one
python -m benchmarks --all --quick --json all, under three minutes; the last line is JSON
python -m benchmarks --all --keep         all, at length; what the documents show is replaced by what was measured
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import time
from pathlib import Path
from types import ModuleType

import click

import benchmarks
from benchmarks import plot, table
from benchmarks.fingerprint import fingerprint
from benchmarks.row import Row

OUT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
MARGIN = 0.5  # a quick run on a shared machine spreads that far; what slows a path down for good shows all the same


@click.command(help=__doc__, context_settings={"max_content_width": 120})
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "everything", is_flag=True, help="All of them, one after the other.")
@click.option("--quick", is_flag=True, help="Fewer and shorter rounds.")
@click.option("--keep", is_flag=True, help="Write results, plots and tables into docs/; not with --quick.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON at the end, with a row for each line.")
@click.option("--check", is_flag=True, help=f"Fail if a ratio misses by {MARGIN:.0%}, twice; never on a time.")
@click.pass_context
def main(
    ctx: click.Context,
    names: tuple[str, ...],
    everything: bool,
    quick: bool,
    keep: bool,
    as_json: bool,
    check: bool,
) -> None:
    """Run them one after the other; one that breaks is reported, and fails the run at its end."""
    if keep and quick:
        raise click.UsageError("--keep wants full rounds: leave out --quick")
    found = _found()
    if not names and not everything:
        click.echo(f"{ctx.get_help()}\n\nNames:")
        for name, module in found.items():
            click.echo(f"  {name:<16} {(module.__doc__ or '').splitlines()[0]}")
        return
    if names and everything:
        raise click.UsageError("--all runs all of them: name none beside it")
    for name in names:
        if name not in found:
            raise click.UsageError(f"no benchmark {name!r}; there are {', '.join(found)}")
    rows: list[Row] = []
    broken: list[str] = []
    missed: list[str] = []
    marks = fingerprint()
    click.echo("  ".join(f"{key} {value}" for key, value in marks.items()), err=as_json)
    for name in names or tuple(found):
        module = found[name]
        if quick and not getattr(module, "QUICK", True):
            continue
        begun_s = time.monotonic()
        click.echo(f"{name} ...", err=as_json)
        try:
            made = module.rows(quick)
            if check and _missed(made, _known(name)):  # on a busy machine once may be chance
                click.echo(f"{name} again: a ratio missed its bar", err=as_json)
                made = [_better(*pair, _known(name)) for pair in zip(made, module.rows(quick), strict=True)]
        except Exception as error:
            broken.append(name)
            click.echo(f"{name}: {type(error).__name__}: {error}", err=True)
            continue
        for row in made:
            click.echo(_line(row), err=as_json)
        click.echo(f"{name} took {time.monotonic() - begun_s:.0f} s", err=as_json)
        rows += made
        if check:
            missed += _missed(made, _known(name))
        if keep:
            _keep(name, module, made, marks)
    if as_json:
        click.echo(json.dumps({"rows": [_plain(row) for row in rows], "fingerprint": marks, "broken": broken}))
    if missed:
        click.echo(f"beyond the bar by over {MARGIN:.0%}: {'; '.join(missed)}", err=True)
    sys.exit(1 if missed or broken else 0)


def _found() -> dict[str, ModuleType]:
    modules = {}
    for info in pkgutil.iter_modules(benchmarks.__path__):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"benchmarks.{info.name}")
            if hasattr(module, "rows"):
                modules[info.name] = module
    return modules


def _known(name: str) -> dict[str, float]:
    """What the documents say was measured: a bar that is not met yet is not failed again in every run."""
    file = OUT / f"{name}.json"
    return {row["name"]: row["value"] for row in json.loads(file.read_text())["rows"]} if file.exists() else {}


def _missed(rows: list[Row], known: dict[str, float]) -> list[str]:
    return [row.name for row in rows if row.ratio and not row.within(MARGIN, known.get(row.name))]


def _better(one: Row, other: Row, known: dict[str, float]) -> Row:
    """Of two measurements of one row, one that does not miss its bar, if there is one."""
    return one if one.within(MARGIN, known.get(one.name)) else other


def _line(row: Row) -> str:
    mark = "" if not row.bar else "met" if row.met else "NOT MET"
    return f"  {row.name:<66} {row.value:>10.4g}  {row.bar:<8} {mark}"


def _plain(row: Row) -> dict[str, object]:
    kept = row._asdict()
    return {**kept, "value": float(f"{row.value:.4g}")}


def _keep(name: str, module: ModuleType, rows: list[Row], marks: dict[str, str]) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"fingerprint": marks, "rows": [_plain(row) for row in rows]}, indent=1)
    (OUT / f"{name}.json").write_text(text + "\n")
    barred = [row for row in rows if row.bar]
    if barred:
        (OUT / f"{name}.svg").write_text(plot.bars(barred))
    if hasattr(module, "draw"):
        module.draw(rows)
    table.update()


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
