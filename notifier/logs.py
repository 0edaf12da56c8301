"""Logs: whom a line is about, as text and as fields; one JSON object a line for those who ask; no payload, no password.

A team that configures logging itself may use the formatters: `JsonFormatter()` on a handler of its own.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, TextIO

from notifier.notification import Identity
from notifier.settings import mask_url

FIELDS = ("what", "user_id", "channel", "notification_id", "recipients", "task", "task_id")
LONGEST = 600  # characters of one field: ids have 512 at most, but a stranger's message may claim anything
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
Format = Literal["text", "json"]
_URL = re.compile(r"\S+://\S+")
_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def of(identity: Identity) -> dict[str, str]:
    """The fields of a line about one notification."""
    return {"user_id": identity.user_id, "channel": identity.channel, "notification_id": identity.notification_id}


def say(log: logging.Logger, level: int, text: str, about: Mapping[str, Any], **fields: Any) -> None:
    """Log a line about something: as text it ends with ` [user_id="42" ...]`, as JSON these are fields."""
    if log.isEnabledFor(level):
        tail = tail_of(about)
        log.log(level, "%s%s", text, tail, extra={**about, **fields, "tail": tail}, stacklevel=2)


def tail_of(about: Mapping[str, Any]) -> str:
    """Quoted and ASCII, so that no id can end the line or pretend to be another."""
    said = " ".join(f"{name}={json.dumps(str(value)[:LONGEST])}" for name, value in about.items())
    return f" [{said}]" if said else ""


def trace(error: BaseException | None) -> str:
    """Where an error came from and of what type, its causes after it. Not its text: it may hold what it was given."""
    parts: list[str] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        parts += [*traceback.format_tb(error.__traceback__), type(error).__name__ + "\n"]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "".join(parts).rstrip()


class TextFormatter(logging.Formatter):
    """A line of text."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802  logging's name
        """Without the error's own text."""
        return trace(ei[1])

    def format(self, record: logging.LogRecord) -> str:
        """Passwords in URLs are masked."""
        return _masked(super().format(record))


class JsonFormatter(logging.Formatter):
    """One object a line: time (UTC), level, logger, event, process; where they are known, FIELDS, error and trace."""

    def format(self, record: logging.LogRecord) -> str:
        """ASCII, without a line break."""
        said = vars(record)
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _masked(record.getMessage().removesuffix(said.get("tail", ""))),
            "process": record.process,
        }
        line |= {name: _short(said[name]) for name in FIELDS if said.get(name) is not None}
        if record.exc_info and record.exc_info[1] is not None:
            line |= {"error": type(record.exc_info[1]).__name__, "trace": trace(record.exc_info[1])}
        return json.dumps(line)


def setup(log_format: Format, *, stream: TextIO | None = None) -> None:
    """The log of a process that is ours alone: INFO and above to `stream` (stderr)."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells of every plugin


def is_json() -> bool:
    """Whether this process logs JSON only."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def _short(value: Any) -> Any:
    return value if isinstance(value, (int, float)) else str(value)[:LONGEST]


def _masked(text: str) -> str:
    return _URL.sub(lambda found: mask_url(found[0]), text)
