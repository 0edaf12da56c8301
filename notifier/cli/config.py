"""`notifier config`: every setting, what it is now, and which place said so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import click
from pydantic import SecretStr

from notifier.cli.output import emit_json, example
from notifier.settings import MASK, PREFIX, Settings, mask_url, places, unknown, variable


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
    table, strangers = list(rows(settings)), unknown(origins())
    if as_json:
        fields = ("name", "value", "default", "from", "description")
        emit_json({"settings": [dict(zip(fields, row, strict=True)) for row in table], "unknown": list(strangers)})
        return
    for row in table:
        origin = "default" if row.origin == "default" else f"from {row.origin}; default {_text(row.default) or 'unset'}"
        click.echo(f"{row.name}={_text(row.value)}\n    {row.description} ({origin})")
    for name, near in strangers.items():
        click.echo(f"{name} is no setting{f'; {near} is' if near else ''}", err=True)


def rows(settings: Settings) -> Iterator[Row]:
    """Every setting, then the limits of single channels."""
    said = origins()

    def row(name: str, value: Any, default: Any, description: str) -> Row:
        return Row(name, shown(value), shown(default), said.get(name, "default"), description)

    for field, info in Settings.model_fields.items():
        if field != "per_channel":
            yield row(variable(field), getattr(settings, field), info.default, info.description or "")
    for channel, limits in sorted(settings.per_channel.items()):
        for field, limit in limits.items():
            general = variable(field)
            yield row(f"{general}__{channel.upper()}", limit, getattr(settings, field), f"{general} of one channel.")


def origins() -> dict[str, str]:
    """Variable -> the place it is taken from."""
    found: dict[str, str] = {}
    for place, values in reversed(places()):
        found |= {name.upper(): place for name in values if name.upper().startswith(PREFIX)}
    return found


def shown(value: Any) -> str | float | bool | None:
    """A value as it may be printed: no secret, no password of a URL."""
    if isinstance(value, SecretStr):
        return MASK
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return mask_url(str(value))


def _text(value: str | float | bool | None) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else f"{value:.15g}" if isinstance(value, float) else str(value)
