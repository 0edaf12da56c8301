"""`notifier config`: every setting, what it is now, and which place said so."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import click
from dotenv import dotenv_values
from pydantic import SecretStr

from notifier.cli.output import emit_json, example
from notifier.settings import PER_CHANNEL, PREFIX, RUN_ENV, Settings

MASK = "***"
_PASSWORD = re.compile(r"(://[^:@/?]*):.*@")
_PASSWORD_PARAMETER = re.compile(r"([?&][^=&]*(?:password|passwd|secret|token)[^=&]*)=[^&]*", re.IGNORECASE)


class Row(NamedTuple):
    """One setting. `origin` is `default`, `environment` or the file that named it; secrets are masked."""

    name: str
    value: str | float | bool | None
    default: str | float | bool | None
    origin: str
    description: str


@click.command(epilog=example("notifier config", "NOTIFIER_USER_LIMIT='5/s burst 20' notifier config --json"))
@click.option("--json", "as_json", is_flag=True, help="One JSON object: settings, unknown.")
def command(as_json: bool) -> None:
    """List every setting: value, default, where it comes from, what it does.

    The environment wins over .env, which wins over what a running `notifier up` wrote. Secrets are masked.
    """
    settings = Settings()
    table, strangers = list(rows(settings)), unknown()
    if as_json:
        fields = ("name", "value", "default", "from", "description")
        emit_json({"settings": [dict(zip(fields, row, strict=True)) for row in table], "unknown": strangers})
        return
    for row in table:
        origin = "default" if row.origin == "default" else f"from {row.origin}; default {_text(row.default) or 'unset'}"
        click.echo(f"{row.name}={_text(row.value)}\n    {row.description} ({origin})")
    for name in strangers:
        near = difflib.get_close_matches(name, [row.name for row in table], n=1)
        click.echo(f"{name} is no setting{f'; {near[0]} is' if near else ''}", err=True)


def rows(settings: Settings) -> Iterator[Row]:
    """Every setting, then the limits of single channels."""
    said = origins()

    def row(name: str, value: Any, default: Any, description: str) -> Row:
        return Row(name.upper(), shown(value), shown(default), said.get(name.upper(), "default"), description)

    for field, info in Settings.model_fields.items():
        if field != "per_channel":
            yield row(f"{PREFIX}{field}", getattr(settings, field), info.default, info.description or "")
    for channel, limits in sorted(settings.per_channel.items()):
        for field, limit in limits.items():
            general = f"{PREFIX}{field}".upper()
            yield row(f"{general}__{channel}", limit, getattr(settings, field), f"{general} of one channel.")


def places() -> list[tuple[str, Mapping[str, str | None]]]:
    """Where settings are read from; the first place that names one wins."""
    return [("environment", os.environ), (".env", dotenv_values(".env")), (str(RUN_ENV), dotenv_values(RUN_ENV))]


def origins() -> dict[str, str]:
    """Variable -> the place it is taken from."""
    found: dict[str, str] = {}
    for place, values in reversed(places()):
        found |= {name.upper(): place for name in values if name.upper().startswith(PREFIX)}
    return found


def unknown() -> list[str]:
    """Variables with our prefix that nothing reads: most likely misspelt."""
    fields = {name.upper() for name in Settings.model_fields} - {"PER_CHANNEL"}
    limits = {name.upper() for name in PER_CHANNEL}
    tails = {name: name.removeprefix(PREFIX).partition("__") for name in origins()}
    return sorted(
        name for name, (field, cut, channel) in tails.items() if field not in (limits if cut and channel else fields)
    )


def shown(value: Any) -> str | float | bool | None:
    """A value as it may be printed: no secret, no password of a URL."""
    if isinstance(value, SecretStr):
        return MASK
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return mask_url(str(value))


def mask_url(text: str) -> str:
    """The text, with passwords of URLs in it replaced by ***."""
    return _PASSWORD_PARAMETER.sub(rf"\1={MASK}", _PASSWORD.sub(rf"\1:{MASK}@", text))


def _text(value: str | float | bool | None) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else f"{value:.15g}" if isinstance(value, float) else str(value)
