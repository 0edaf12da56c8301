"""The article's latency curve: from `delay()` to the socket as the load rises to capacity and past it.

Draws docs/benchmarks/curve.svg: ours and an INSERT per event, p50 and p99. Not for quick runs.
"""

from __future__ import annotations

from benchmarks import plot
from benchmarks.crowd import crowd, in_ms
from benchmarks.row import Row, median, percentile, rounded, row
from benchmarks.stage import ROOT, on_stage

COMMAND = "python -m benchmarks curve"
QUICK = False
USERS = 400
LOADS = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.5)
SECONDS = 3.0
PICTURE = ROOT / "docs" / "benchmarks" / "curve.svg"
STYLES = {"ours": ("notifier", plot.GREEN), "insert": ("an INSERT per event", plot.RED)}


def rows(quick: bool) -> list[Row]:
    """p99 of both at the highest load, and the picture."""
    points: dict[str, list[tuple[float, float, float]]] = {"ours": [], "insert": []}
    with on_stage(gateway=True) as stage, crowd(stage, USERS) as ours, crowd(stage, USERS, "peer") as peers:
        people = {"ours": (ours, ours.ours), "insert": (peers, peers.insert)}
        for crowd_of, send in people.values():
            crowd_of.capacity(send, 100)
        capacity = median([ours.capacity(ours.ours, USERS) for _ in range(3)])
        for load in LOADS:
            for name, (crowd_of, send) in people.items():
                sent = crowd_of.steadily(send, load * capacity, SECONDS)
                times_ms = in_ms(crowd_of.heard(sent, 120.0))
                points[name].append((load * capacity, percentile(times_ms, 0.5), percentile(times_ms, 0.99)))
                stage.drained()
    curves = []
    for name, found in points.items():
        title, colour = STYLES[name]
        curves.append(plot.Line(f"{title}, p99", [(rate, p99) for rate, _, p99 in found], colour))
        curves.append(plot.Line(f"{title}, p50", [(rate, p50) for rate, p50, _ in found], colour, "5 4"))
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(plot.lines(curves, title="From delay() to the user's socket, milliseconds",
                                  x_label="notifications a second offered", y_label="ms"))  # fmt: skip
    table = {name: [[rounded(number) for number in point] for point in found] for name, found in points.items()}
    return [
        row("curve: p99 past capacity, an INSERT per event / ours", points["insert"][-1][2] / points["ours"][-1][2], "",
            COMMAND, capacity_per_s=round(capacity), rate_p50_p99=table),
    ]  # fmt: skip
