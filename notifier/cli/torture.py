"""`notifier torture`: everything on this machine under load and under attack, with the books at the end."""

from __future__ import annotations

import secrets
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from notifier.cli.numbers import Number
from notifier.cli.output import console, emit_json, example, plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from notifier.lab.torture import Broker, Result

MEANINGS = {
    "accepted": "the senders' own list",
    "delivered": "arrived at the sockets",
    "waiting": "in PostgreSQL or on the way there",
    "parked": "died with its process too often: waits for a person",
    "lost": "neither arrived nor held anywhere, or stuck",
    "duplicates": "arrived again",
    "disorder": "overtook one that had been denied before",
    "limit_excess": "tokens over B + R*T + L and what is promised for an outage, in the worst window of any user",
}


@click.command(
    epilog=example(
        "notifier torture",
        "notifier torture --seconds 300 --broker rabbitmq --json | tail -1",
        "NOTIFIER_USER_LIMIT='5/s burst 20' notifier torture --seed 7 --keep torture-7",
    )
)
@click.option("--seconds", type=Number(1, 86_400), default=60, show_default=True, help="How long.")
@click.option(
    "--seed", type=click.IntRange(0), default=None, help="Makes the faults and the load; random if not given."
)
@click.option("--broker", type=click.Choice(["redis", "rabbitmq"]), default="redis", show_default=True)
@click.option(
    "--keep", type=click.Path(path_type=Path, file_okay=False), default=None, help="Keep logs and lists there."
)
@click.option("--json", "as_json", is_flag=True, help="End with the result as one JSON object on one line.")
def command(seconds: float, seed: int | None, broker: Broker, keep: Path | None, as_json: bool) -> None:
    """Kill, freeze, cut off and restart everything at random under load, and count what was lost.

    Two senders keep their own lists of what was accepted; websocket clients of twenty-two users receive. Meanwhile
    worker children, workers, beat, the gateway, both Valkeys (AOF always), PostgreSQL and RabbitMQ are killed with -9,
    frozen, restarted, and their connections cut or held up, all from the seed. Then everything is healed and may drain.
    Servers are always started here; limits and other settings are the environment's.

    Exit code 0 only if nothing was lost, doubled, out of order or over the limit.
    """
    from notifier.cli.signals import ended_by_signals
    from notifier.lab import torture

    seed = secrets.randbelow(1_000_000) if seed is None else seed
    again = f"notifier torture --seconds {seconds:g} --seed {seed} --broker {broker}"
    click.echo(f"the same again: {again}")
    with ended_by_signals():
        result = torture.run(seconds, seed, broker, lambda text: click.echo(text), keep)
    screen = console()
    screen.print(_table(result))
    screen.print(f"\n{'PASSED' if result.ok else 'FAILED'}: {_verdict(result)}", soft_wrap=True)
    click.echo(f"the same again: {again}")
    if as_json:
        emit_json(asdict(result))
    sys.exit(0 if result.ok else 1)


def _table(result: Result) -> Table:
    table = plain_table("", "", "")
    table.show_header = False
    for name, value in asdict(result).items():
        table.add_row(name.replace("_", " "), f"{value:,}" if name != "seed" else str(value), MEANINGS.get(name, ""))
    table.columns[1].justify = "right"
    return table


def _verdict(result: Result) -> str:
    wrong = [
        f"{name.replace('_', ' ')} {getattr(result, name):,}"
        for name in ("lost", "duplicates", "disorder", "limit_excess")
        if getattr(result, name)
    ]
    return ", ".join(wrong) or "nothing lost, nothing twice, in order, within the limits"
