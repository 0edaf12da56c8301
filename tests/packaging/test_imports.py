"""What `import notifier` costs an app that only sends, and what it may rely on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import notifier
from notifier.cli import EXTRA_OF

PUBLIC = [
    "Limit",
    "Limiter",
    "LocalBucket",
    "NotAccepted",
    "Notification",
    "Settings",
    "Verdict",
    "anotify",
    "anotify_many",
    "notify",
    "notify_many",
    "send_in",
    "send_many_in",
]


def fresh(code: str) -> object:
    """What `code` leaves in `result`, in a Python that has imported nothing yet."""
    program = f"import json, sys\n{code}\nprint(json.dumps(result))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_an_extra_names_all_that_is_imported_with_it() -> None:
    """What another package happens to bring may be older than what is needed."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    named = {
        extra: {re.split(r"[\[<>=]", requirement)[0].replace("-", "_") for requirement in requirements}
        for extra, requirements in project["optional-dependencies"].items()
    }
    for package, extra in EXTRA_OF.items():
        assert {"jwt": "pyjwt"}.get(package, package) in named[extra], package


def test_importing_notifier_loads_no_celery_app_and_no_extra() -> None:
    loaded = fresh("import notifier\nresult = sorted({name.partition('.')[0] for name in sys.modules})")
    assert isinstance(loaded, list) and "notifier" in loaded
    assert not {"tasks", "celery", *EXTRA_OF} & set(loaded)


def test_importing_notifier_and_its_pytest_plugin_loads_next_to_nothing() -> None:
    """Every pytest run of a project loads the plugin, whether it is used or not."""
    code = """
import sys, pytest
before = set(sys.modules)
import notifier.pytest_plugin
result = sorted(set(sys.modules) - before)
"""
    assert fresh(code) == ["notifier", "notifier.pytest_plugin"]


def test_everything_public_can_be_imported_without_an_extra() -> None:
    code = f"""
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(EXTRA_OF)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import notifier, tasks
result = [name for name in {PUBLIC!r} if getattr(notifier, name, None) is None]
"""
    assert fresh(code) == []


def test_importing_connects_to_nothing_and_starts_no_thread() -> None:
    code = """
import socket, threading
def refuse(*arguments): raise AssertionError("a connection at import")
socket.socket.connect = refuse
import notifier, tasks
for name in notifier.__all__:
    getattr(notifier, name)
result = threading.active_count()
"""
    assert fresh(code) == 1


def test_a_public_name_is_looked_up_once() -> None:
    assert fresh("import notifier\nnotifier.Limit\nresult = 'Limit' in vars(notifier)") is True


def test_the_public_names_are_these() -> None:
    """Other people's code uses them: adding one is a decision, removing one breaks somebody."""
    assert sorted(notifier.__all__) == PUBLIC
