"""`notifier limits`: show and change limits while everything runs."""

from __future__ import annotations

import contextlib

import click

from notifier.cli.output import console, emit_json, example, plain_table
from notifier.limit import Limit
from notifier.limits.overrides import Editor
from notifier.notification import MAX_NAME, clean_text, clean_user_id
from notifier.settings import Settings


class LimitType(click.ParamType[Limit]):
    """A limit in its notation."""

    name = "limit"

    def convert(self, value: str | Limit, param: click.Parameter | None, ctx: click.Context | None) -> Limit:
        """Fails with the reason and a form that would do."""
        if isinstance(value, Limit):
            return value
        try:
            return Limit.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


user_argument = click.argument("user", required=False)
category_option = click.option("--category", metavar="C", help="The limit of a category instead of a user's.")
channel_option = click.option("--channel", default="websocket", show_default=True, help="The channel it holds on.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


@click.group(epilog=example("notifier limits set 42 '10/s burst 50'", "notifier limits get 42"))
def command() -> None:
    """Show and change limits. Every process follows within a second.

    A user's limit replaces NOTIFIER_USER_LIMIT for him. A category's limit gives every user a bucket of its own for
    that category.
    """


@command.command(epilog=example("notifier limits get 42", "notifier limits get --category security --json"))
@user_argument
@category_option
@channel_option
@json_option
def get(user: str | None, category: str | None, channel: str, as_json: bool) -> None:
    """Show the limit of USER or of a category; of neither: the settings and every category that has one."""
    settings = Settings()
    clean_text("channel", channel, MAX_NAME)
    with contextlib.closing(Editor(settings)) as editor:
        if user is None and category is None:
            _overview(settings, editor, channel, as_json)
            return
        what = _one_of(user, category)
        override = editor.user(what, channel) if user is not None else editor.categories().get((channel, what))
    limit = override or settings.user_limit_of(channel)
    if as_json:
        emit_json({"limit": str(limit), "overridden": override is not None, "channel": channel})
    else:
        inherited = "  (from the settings)" if category is None else "  (each user's; the category has none of its own)"
        click.echo(f"{limit}{'' if override else inherited}")


@command.command(
    "set", epilog=example("notifier limits set 42 '10/s burst 50'", "notifier limits set --category security 5/s")
)
@click.argument("words", nargs=-1, required=True, metavar="[USER] LIMIT")
@category_option
@channel_option
def set_(words: tuple[str, ...], category: str | None, channel: str) -> None:
    """Set the limit of USER or of a category: '2/s burst 10', '30/min', 'off' (no limit), '0/s' (none pass)."""
    expected = 1 if category is not None else 2
    if len(words) != expected:
        usage = "--category C LIMIT" if category is not None else "USER LIMIT"
        raise click.UsageError(f"write: notifier limits set {usage}; quote a limit that has a burst: '2/s burst 10'")
    limit = LimitType().convert(words[-1], None, None)
    with contextlib.closing(Editor(Settings())) as editor:
        if category is not None:
            editor.set_category(category, channel, limit)
        else:
            editor.set_user(words[0], channel, limit)
    click.echo(f"{category or words[0]}: {limit} on {channel}")


@command.command(epilog=example("notifier limits unset 42", "notifier limits unset --category security"))
@user_argument
@category_option
@channel_option
def unset(user: str | None, category: str | None, channel: str) -> None:
    """Go back to the limit of the settings."""
    what = _one_of(user, category)
    settings = Settings()
    with contextlib.closing(Editor(settings)) as editor:
        if user is not None:
            editor.set_user(what, channel, None)
        else:
            editor.set_category(what, channel, None)
    limit = settings.user_limit_of(channel)
    if user is not None:
        click.echo(f"{what}: no limit of its own on {channel} any more; the settings' {limit} counts")
    else:
        click.echo(f"category {what}: no limit of its own on {channel} any more; it shares each user's limit")


def _one_of(user: str | None, category: str | None) -> str:
    if (user is None) == (category is None):
        raise click.UsageError("name either a USER or a --category")
    return clean_user_id(user) if category is None else clean_text("category", category, MAX_NAME)


def _overview(settings: Settings, editor: Editor, channel: str, as_json: bool) -> None:
    rows = {
        "user": str(settings.user_limit_of(channel)),
        "channel": str(settings.channel_limit_of(channel)),
        "quota": str(settings.user_quota_of(channel)),
    }
    own = {name: str(limit) for (of, name), limit in sorted(editor.categories().items()) if of == channel}
    if as_json:
        emit_json({"channel": channel, **rows, "categories": own})
        return
    table = plain_table("what", f"limit on {channel}")
    for name, limit in [*rows.items(), *((f"category {name}", limit) for name, limit in own.items())]:
        table.add_row(name, limit)
    console().print(table)
