"""Draws docs/images/dashboard.svg and top.svg from a real Prometheus and real processes under load.

python -m benchmarks.pictures      a minute and a half; needs Debian's prometheus
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from benchmarks.panels import Panel, Series, draw
from benchmarks.stage import ROOT, Stage, on_stage
from notifier import producer
from notifier.cli.top import Watch
from notifier.cli.top_page import page
from notifier.embedded.process import end, free_port, spawn
from notifier.gateway.auth import token_for
from notifier.lab.sockets import Sockets
from notifier.lab.traffic import Traffic
from notifier.metrics_dir import VARIABLE

IMAGES = ROOT / "docs" / "images"
DEPLOY = ROOT / "deploy"
QUIET = tuple(f"quiet-{number:02}" for number in range(1, 41))
BEFORE_S, AWAY_S, AFTER_S = 25.0, 10.0, 35.0
SCRAPE = "1s"
RATE = "5s"  # for Grafana's $__rate_interval, which is at least four scrapes
TOP_WIDTH = 104
BLACK, RED, GREEN, OCHRE, BLUE = (34, 34, 34), (179, 65, 46), (42, 127, 79), (176, 122, 30), (59, 98, 176)
LIGHT = TerminalTheme(
    (255, 255, 255), BLACK, [BLACK, RED, GREEN, OCHRE, BLUE, (138, 95, 168), (63, 143, 155), (118, 118, 118)]
)
FRAME = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {terminal_width} {terminal_height}">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
 font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>{lines}</defs>
<rect width="100%" height="100%" fill="white"/>
<g transform="translate(12, 12)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def main() -> None:
    """Run the load, then draw."""
    if shutil.which("prometheus") is None:
        sys.exit("needs prometheus (Debian: apt-get install prometheus)")
    with tempfile.TemporaryDirectory(prefix="notifier-pictures-") as home:
        os.environ[VARIABLE] = f"{home}/metrics"  # of the processes that are started now
        with on_stage(workers=2, gateway=True, variables={"NOTIFIER_USER_LIMIT": "2/s burst 10"}) as stage:
            target = stage.stack.gateway_url.removeprefix("http://")
            with _prometheus(Path(home), target) as prometheus:
                began_s, marks = time.time(), _load(stage)
                seconds = time.time() - began_s
                _save("dashboard.svg", draw(_panels(prometheus, began_s, seconds), seconds, marks))


def _load(stage: Stage) -> list[tuple[float, str]]:
    """The demo's traffic, and the limiter's Redis away for a while. What happened when, in seconds."""
    tokens = {user_id: token_for(stage.settings, user_id, 3_600) for user_id in (*QUIET, "noisy")}
    sockets = Sockets(stage.stack.gateway_url, tokens)
    traffic = Traffic(producer.notify, "noisy", QUIET, stage.settings.user_limit_of("websocket"))
    limiter = stage.servers.started["limiter"]
    sockets.start()
    began_s = time.time()
    traffic.start()
    try:
        time.sleep(BEFORE_S)
        limiter.kill()
        away_s = time.time() - began_s
        time.sleep(AWAY_S)
        limiter.restart()
        back_s = time.time() - began_s
        top = threading.Timer(AFTER_S - 15, _top, [stage])
        top.start()
        time.sleep(AFTER_S)
        top.join()
    finally:
        traffic.stop()
        sockets.stop()
    return [(away_s, "stopped"), (back_s, "started")]


def _top(stage: Stage) -> None:
    watch = Watch(stage.settings, (f"{stage.stack.gateway_url}/metrics",), 0.5)
    for _ in range(20):
        found = watch.next()
    watch.close()
    found = found._replace(scraped={"http://127.0.0.1:8000/metrics": "ok"})  # its port is another one at each run
    console = Console(record=True, width=TOP_WIDTH, highlight=False, markup=False, file=io.StringIO())
    console.print(page(found, tuple(watch.delivered), "notifier top, 12:00:00, every 0.5 s; q ends", TOP_WIDTH))
    _save("top.svg", console.export_svg(theme=LIGHT, code_format=FRAME, unique_id="top"))


@contextmanager
def _prometheus(home: Path, target: str) -> Iterator[str]:
    """A real one that scrapes the gateway; its address."""
    port = free_port()
    scrape = {"job_name": "notifier", "scrape_interval": SCRAPE, "static_configs": [{"targets": [target]}]}
    (home / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scrape]}))
    command = ["prometheus", f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/tsdb",
               f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    process = spawn(command, log=home / "prometheus.log", env={"PATH": "/usr/bin:/bin"}, cwd=home)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        end(process, signal.SIGTERM, 10.0)


def _panels(prometheus: str, began_s: float, seconds: float) -> list[Panel]:
    """The dashboard's, asked as Grafana asks."""
    panels = []
    for panel in json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())["panels"]:
        at = panel["gridPos"]
        place = (at["x"], at["y"], at["w"], at["h"])
        if panel["type"] == "row":
            panels.append(Panel(panel["title"], place, "", (), heading=True))
            continue
        series = [each for target in panel["targets"] for each in _series(prometheus, target, began_s, seconds)]
        panels.append(Panel(panel["title"], place, panel["fieldConfig"]["defaults"]["unit"], series))
    return panels


def _series(prometheus: str, target: dict[str, Any], began_s: float, seconds: float) -> list[Series]:
    query = target["expr"].replace("$__rate_interval", RATE)
    asked = urllib.parse.urlencode({"query": query, "start": began_s, "end": began_s + seconds, "step": "1s"})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query_range?{asked}", timeout=30) as reply:
        found = json.load(reply)["data"]["result"]
    curves, legend = [], target["legendFormat"].replace("{{", "{").replace("}}", "}")
    for result in found:
        points = [(at_s - began_s, float(value)) for at_s, value in result["values"] if value not in ("NaN", "+Inf")]
        if points and (any(value for _, value in points) or len(found) == 1):
            curves.append(Series(legend.format_map(defaultdict(str, result["metric"])).strip(), points))
    return curves


def _save(name: str, text: str) -> None:
    (IMAGES / name).write_text(text)
    print(f"{IMAGES / name}: {len(text) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
