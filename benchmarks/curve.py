"""The article's latency curve: from the call to the socket as the load rises to capacity and past it.

The load are events with a crowd of recipients each: one `send_notifications` against a task with an INSERT and a push
for each recipient; and single sends, one by one. Draws docs/benchmarks/curve.svg. Not for quick runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from benchmarks import plot
from benchmarks.crowd import Crowd, crowd, in_ms
from benchmarks.row import Row, median, percentile, rounded, row
from benchmarks.stage import ROOT, on_stage

COMMAND = "python -m benchmarks curve"
QUICK = False
USERS = 400
CROWD = 40  # recipients of an event
LOADS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
SECONDS = 2.0
LIMIT = "1000/s burst 1000"  # the limiter is asked, and grants: this is about load
PICTURE = ROOT / "docs" / "benchmarks" / "curve.svg"


def rows(quick: bool) -> list[Row]:
    """p99 of both at the highest load, and the picture."""
    points: dict[str, list[tuple[float, float, float]]] = {"events": [], "single": [], "insert": []}
    limits = {"NOTIFIER_USER_LIMIT": LIMIT}
    with (
        on_stage(gateway=True, variables=limits) as stage,
        crowd(stage, USERS) as ours,
        crowd(stage, USERS, "peer") as peers,
    ):
        many = stage.app.tasks["notifier.send_notifications"]

        def insert_each(users: Sequence[str], payload: dict[str, Any]) -> None:
            for user in users:
                peers.insert(user, payload)

        sends: dict[str, tuple[Crowd, Any, int]] = {
            "events": (ours, many.delay, CROWD),
            "single": (ours, ours.ours, 1),
            "insert": (peers, insert_each, CROWD),
        }
        for people, send in ((ours, ours.ours), (peers, peers.insert)):
            people.capacity(send, 100)
        capacity = median([ours.capacity(ours.ours, USERS) for _ in range(3)])
        for load in LOADS:
            for name, (people, send, size) in sends.items():
                crowds = [people.users[n : n + size] for n in range(0, USERS, size)]
                turn = itertools.cycle(crowds if size > 1 else people.users)
                sent = people.steadily(send, load * capacity / size, SECONDS, turn)
                times_ms = in_ms(people.heard(sent * size, 120.0))
                points[name].append((load * capacity, percentile(times_ms, 0.5), percentile(times_ms, 0.99)))
                stage.drained()
    table = {name: [[rounded(number) for number in point] for point in found] for name, found in points.items()}
    worst = {name: found[-1][2] for name, found in points.items()}
    return [
        row("p99 past capacity: an INSERT for each / one call an event", worst["insert"] / worst["events"], "",
            COMMAND, capacity_per_s=round(capacity), rate_p50_p99=table),
    ]  # fmt: skip


def draw(rows: list[Row]) -> None:
    """The README's picture, from what `rows` returned."""
    points, curves = rows[0].detail["rate_p50_p99"], []
    for name, title, colour in (
        ("insert", "INSERT for each", plot.RED),
        ("single", "single sends", plot.GREY),
        ("events", "one call an event", plot.GREEN),
    ):
        curves.append(plot.Line(f"{title}, p99", [(rate, p99) for rate, _, p99 in points[name]], colour))
        if name != "single":
            curves.append(plot.Line(f"{title}, p50", [(rate, p50) for rate, p50, _ in points[name]], colour, "5 4"))
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    title, label = "From the call to the user's socket, milliseconds", "notifications a second offered"
    PICTURE.write_text(plot.lines(curves, title=title, x_label=label, y_label="ms"))
