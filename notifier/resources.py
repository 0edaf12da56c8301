"""Where what belongs to the package is: lua/ and migrations/ beside it in a checkout, inside it in a wheel; `tasks`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
TASKS = _PACKAGE.parent / "tasks" / "__init__.py"
UNSHADOW = (
    "rename it, or leave it and run `notifier worker` and `notifier beat`, and send with `from notifier import notify`"
)


def _find(name: str) -> Path:
    for folder in (_PACKAGE / f"_{name}", _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"{name} is missing from the installation of celery-notifier; install it again")


def lua(name: str) -> str:
    """The text of lua/<name>.lua."""
    return (_find("lua") / f"{name}.lua").read_text(encoding="utf-8")


def migrations() -> Path:
    """The folder of the Alembic migrations."""
    return _find("migrations")


def shadow() -> Path | None:
    """The `tasks` of somebody else's that `import tasks` and Celery's -A find in the working directory, or before ours.

    UNSHADOW says what to do about it.
    """
    for place in (Path.cwd(), *map(Path, sys.path)):
        for found in (place / "tasks" / "__init__.py", place / "tasks.py"):
            if os.path.isfile(found):  # noqa: PTH113  Path.is_file raises where it may not look; an import does not
                return None if found.resolve() == TASKS else found
    return None
