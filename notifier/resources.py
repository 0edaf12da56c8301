"""Where lua/ and migrations/ are: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


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
