"""Finds the Celery app of the installed `tasks` package, whatever `tasks.py` lies in the working directory."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from notifier import logs
from notifier.errors import NotifierError
from notifier.resources import TASKS, UNSHADOW
from notifier.settings import Settings


def load() -> Any:
    """The app, a celery.Celery. Raises NotifierError where another module already took the name `tasks`."""
    return _ours().app


def run(subcommand: str, arguments: tuple[str, ...]) -> None:
    """Run a Celery subcommand in this process with our app. Ends with SystemExit as Celery says.

    Celery looks for `tasks` under that name in sys.modules first, so its children and its own -A find ours too.
    """
    app = load()
    before: list[str] = []
    if Settings().log_format == "json":
        logs.setup("json")  # until Celery's own logging begins: it warns of root before that
        before = ["--quiet"]  # its banner is no JSON
    sys.exit(app.start([*before, subcommand, *arguments]))


def _ours() -> ModuleType:
    present = sys.modules.get("tasks")
    if present is not None:
        if Path(present.__file__ or "").resolve() == TASKS:
            return present
        raise NotifierError(f"another module named 'tasks' is already imported, from {present.__file__}; {UNSHADOW}")
    spec = importlib.machinery.PathFinder.find_spec("tasks", [str(TASKS.parents[1])])
    if spec is None or spec.loader is None:
        raise NotifierError("the package 'tasks' is missing from the installation of celery-notifier; install it again")
    module = importlib.util.module_from_spec(spec)
    sys.modules["tasks"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["tasks"]
        raise
    return module
