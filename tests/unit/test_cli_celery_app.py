"""`notifier worker` and `notifier beat` run our tasks, whatever lies in the working directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import notifier
from notifier.resources import shadow

HOME = Path(notifier.__file__).parent.parent


@pytest.fixture
def own_tasks(tmp_path: Path) -> Path:
    """A working directory with a tasks.py of the user's own."""
    (tmp_path / "tasks.py").write_text("whose = 'the user'\n")
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in `folder`, which it looks in first; the checkout comes after it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(HOME)])}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


def test_the_folder_does_shadow_an_ordinary_import(own_tasks: Path) -> None:
    assert run(own_tasks, "-c", "import tasks; print(tasks.whose)").stdout == "the user\n"


def test_our_app_is_found_all_the_same_also_by_celery_itself(own_tasks: Path) -> None:
    code = (
        "from notifier.cli.celery_app import load\nours = load()\n"
        "from celery.app.utils import find_app\nimport tasks\n"
        "here = 'notifier.send_notification' in ours.tasks\n"
        "print(find_app('tasks') is ours, tasks.app is ours, load() is ours, here)"
    )
    done = run(own_tasks, "-c", code)
    assert done.stdout == "True True True True\n", done.stderr


def test_a_tasks_module_that_came_first_is_named(own_tasks: Path) -> None:
    code = "import tasks\nfrom notifier.cli.celery_app import load\nload()"
    done = run(own_tasks, "-c", code)
    assert done.returncode == 1
    assert f"NotifierError: another module named 'tasks' is already imported, from {own_tasks}/tasks.py" in done.stderr


def test_a_tasks_module_in_the_working_directory_is_noticed(own_tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shadow() == own_tasks / "tasks.py"  # every test works in its own directory
    (own_tasks / "tasks.py").unlink()
    assert shadow() is None
    elsewhere = own_tasks / "site"
    (elsewhere / "tasks").mkdir(parents=True)
    (elsewhere / "tasks" / "__init__.py").touch()
    monkeypatch.syspath_prepend(elsewhere)
    monkeypatch.syspath_prepend("x" * 5_000)  # no place at all, as one that may not be read: an import passes it over
    assert shadow() == elsewhere / "tasks" / "__init__.py"
    monkeypatch.chdir(HOME)
    assert shadow() is None, "what a checkout of Notifier has there is the right one"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["worker", "beat"])
def test_celerys_own_options_are_passed_on(own_tasks: Path, command: str) -> None:
    done = run(own_tasks, "-m", "notifier", command, "--", "--help")
    assert done.returncode == 0, done.stderr
    assert "--loglevel" in done.stdout
    done = run(own_tasks, "-m", "notifier", command, "--no-such-option")
    assert done.returncode == 2
    assert "No such option" in done.stderr and "Traceback" not in done.stderr
