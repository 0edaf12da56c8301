"""A worker without a gateway serves its pool's metrics itself."""

from __future__ import annotations

import os
import signal
import sys
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from notifier.producer import notify
from tests.acceptance.conftest import PATIENCE_S, Process, Site
from tests.support import descendants, eventually, free_port


def scraped(port: int) -> dict[str, float]:
    """name{labels} of every sample."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        families = text_string_to_metric_families(reply.read().decode())
        return {f"{s.name}{sorted(s.labels.items())}": s.value for family in families for s in family.samples}


@pytest.mark.slow
def test_the_pool_is_told_of_by_its_worker_also_after_a_child_was_killed(site: Site) -> None:
    port = free_port()
    environment = {**os.environ, **site.env, "NOTIFIER_METRICS_PORT": str(port)}
    options = ["--concurrency", "1", "--without-gossip", "--without-mingle"]
    command = [sys.executable, "-m", "notifier", "worker", *options]
    worker = Process(command, site.directory / "worker.log", environment, site.directory)
    site.processes.append(worker)
    worker.says(" ready.")
    delivered = "notifier_ended_total[('channel', 'websocket'), ('end', 'delivered'), ('reason', '')]"
    in_touch = "notifier_limiter_processes[('state', 'in_touch')]"

    def send(total: int) -> None:
        notify("anna", total)
        eventually(lambda: scraped(port).get(delivered) == total, timeout_s=PATIENCE_S)
        eventually(lambda: scraped(port).get(in_touch) == 1, timeout_s=PATIENCE_S)

    send(1)
    (child,) = (process.pid for process in descendants(worker.pid))
    os.kill(child, signal.SIGKILL)
    send(2)
    assert scraped(port)["notifier_up[('server', 'database')]"] == 1

    assert worker.stop() == 0, worker.text
