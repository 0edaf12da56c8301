"""Writes what docs/benchmarks/*.json hold into the table of docs/performance.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "performance.md"
BEGIN, END = "<!-- rows: written by python -m benchmarks -->", "<!-- end of rows -->"
ORDER = ("throughput", "latency", "curve", "limiter", "deadletters", "gateway", "shapes", "cost", "broker_restart")


def update() -> None:
    """Anew from all files. What stands around the markers is left as it is."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{_table()}{END}{after}")


def _table() -> str:
    files = sorted((DOCS / "benchmarks").glob("*.json"), key=_place)
    parts = []
    for file in files:
        found = json.loads(file.read_text())
        rows: list[dict[str, Any]] = found["rows"]
        machine = found["fingerprint"]
        parts.append(
            f"\n`{rows[0]['command']}` ({machine['cpu']}, load {machine['load']} when it began, {machine['date']})\n\n"
            "| what | measured | bar | |\n|---|---:|---|---|\n"
        )
        parts += [
            f"| {row['name']} | {_number(row['value'])}{_rounds(row)} | {row['bar'] or '-'} | {_verdict(row)} |\n"
            for row in rows
        ]
    return "".join(parts) + "\n"


def _place(file: Path) -> tuple[int, str]:
    return (ORDER.index(file.stem) if file.stem in ORDER else len(ORDER), file.stem)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def _rounds(row: dict[str, Any]) -> str:
    rounds = row["detail"].get("rounds")
    return f" ({_number(rounds[0])} to {_number(rounds[-1])})" if isinstance(rounds, list) and len(rounds) == 3 else ""


def _verdict(row: dict[str, Any]) -> str:
    if not row["bar"]:
        return ""
    return "met" if row["met"] else "not met"
