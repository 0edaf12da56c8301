"""`notifier token`: lets a user in at the gateway."""

from __future__ import annotations

import click

from notifier.cli.numbers import Number
from notifier.cli.output import emit_json, example


@click.command(epilog=example("notifier token 42", "notifier token 42 --ttl 86400 --json"))
@click.argument("user")
@click.option("--ttl", type=Number(1, 315_360_000), default=3_600, show_default=True, metavar="SECONDS")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: user, token, ttl_s.")
def command(user: str, ttl: float, as_json: bool) -> None:
    """Print a token with which USER's feed can be read at the gateway, signed with NOTIFIER_SECRET.

    Whoever has it reads that feed until it expires: for development, and for a look at one user's feed.
    """
    from notifier.gateway.auth import token_for
    from notifier.settings import Settings

    token = token_for(Settings(), user, ttl)
    if as_json:
        emit_json({"user": user, "token": token, "ttl_s": int(ttl)})
    else:
        click.echo(token)
