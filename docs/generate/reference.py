"""The reference pages, made from the code whenever the site is built. A hook of MkDocs, see mkdocs.yml."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click
from annotated_types import Ge, Gt, Le, Lt
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from prometheus_client.metrics import MetricWrapperBase
from pydantic.fields import FieldInfo

import notifier
import tasks
from notifier import channels, errors, hooks, metrics, preferences, testing
from notifier.cli import COMMANDS, main
from notifier.cli.config import shown
from notifier.exposition import families
from notifier.gateway import meters
from notifier.settings import PER_CHANNEL, Settings, variable
from notifier.survey import Survey

WIDTH = 80  # characters: what fits beside the table of contents
# Members that are public, where not all are.
MEMBERS = {
    "Limiter": ["from_settings", "acquire", "acquire_many", "flush", "state", "close"],
    "LocalBucket": ["consume"],
    "Notification": ["create", "identity"],
    "Settings": [],
}
# What other packages may import beside `notifier` itself: module -> names.
MODULES = {
    errors: [name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)],
    channels: ["Delivery", "Sent", "Duplicate", "RetryAt", "Failed", "Channel"],
    hooks: ["Event", "add"],
    preferences: ["Preferences", "QuietHours", "use"],
    testing: ["recording", "SentNotifications", "SentNotification"],
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages: dict[str, Callable[[], Iterator[str]]] = {
        "python": python, "settings": settings, "commands": commands, "metrics": of_metrics
    }  # fmt: skip
    for name, make in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(make()) + "\n"))
    return files


def python() -> Iterator[str]:
    """What `notifier` and `tasks` export, and the modules that plugins and tests use."""
    yield "# Python"
    yield "\nWhat is on this page is public, and changes with the version number as Semantic Versioning says.\n"
    for name in notifier.__all__:
        yield from _object(f"notifier.{name}", MEMBERS.get(name))
    yield "\n## `tasks`\n"
    for name in ("send_notification", "send_notifications", "replay_dead_letters", "sweep_unsettled"):
        summary = (getattr(tasks, name).__doc__ or "").strip().splitlines()[0]
        yield f"- `tasks.{name}`: {summary}"
    yield "- `tasks.app`: the Celery app that comes with Notifier."
    yield "\n`send_notification.delay` and `send_notifications.delay` take the arguments of `Notification.create`."
    for module, names in MODULES.items():
        yield f"\n## `{module.__name__}`\n"
        for name in names:
            yield from _object(f"{module.__name__}.{name}", level=3)


def settings() -> Iterator[str]:
    """Every field of Settings."""
    yield "# Settings"
    yield "\nFrom the environment, then `.env`, then what a running `notifier up` wrote. A value that is"
    yield "no good is refused at start, by name. `notifier config` prints them as they are now.\n"
    for field, info in Settings.model_fields.items():
        if field == "per_channel":
            continue
        name = variable(field)
        default = shown(info.default)
        yield f"\n## `{name}` {{ #{name.lower()} }}\n"
        yield f"{info.description}\n"
        said = (
            "none" if default in (None, "") else f"`{str(default).lower() if isinstance(default, bool) else default}`"
        )
        bounds = ", ".join(_bounds(info))
        own = f"; of one channel: `{name}__WEBHOOK`" if field in PER_CHANNEL else ""
        yield f"Default: {said}{f'; {bounds}' if bounds else ''}{own}"


def commands() -> Iterator[str]:
    """The help of every command."""
    yield "# Commands"
    context = _context(main, None, "notifier")
    yield f"\n{_help(main, context)}"
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        yield from _command(command, context, name, 2)


def of_metrics() -> Iterator[str]:
    """What `/metrics` serves of ours."""
    yield "# Metrics\n\n<div class='whole' markdown>"
    yield "\nAt `/metrics` of a gateway and, with `NOTIFIER_METRICS_PORT`, of a worker."
    yield "See [operations](../operations.md)."
    yield "\n## What processes count\n\nSum these over instances.\n"
    yield from _HEAD
    for module in (metrics, meters):
        for value in vars(module).values():
            if isinstance(value, MetricWrapperBase):
                for family in value.describe():
                    yield _metric(family.name, family.type, value._labelnames, family.documentation)
    yield "\n## How the installation stands\n\nThe same at every instance: take the maximum.\n"
    yield from _HEAD
    for family in families(Survey({}, None, None)):
        yield _metric(family.name, family.type, getattr(family, "_labelnames", ()), family.documentation)
    yield "\n</div>"


_HEAD = ("| metric | type | labels | |", "|---|---|---|---|")


def _metric(name: str, kind: str, labels: tuple[str, ...], text: str) -> str:
    full = f"{name}_total" if kind == "counter" else name
    return f"| `{full}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {text} |"


def _object(path: str, members: list[str] | None = None, level: int = 2) -> Iterator[str]:
    yield f"\n::: {path}\n    options:\n      heading_level: {level}"
    if members is not None:
        yield f"      members: {members or 'false'}"


def _bounds(info: FieldInfo) -> Iterator[str]:
    for rule in info.metadata:
        if isinstance(rule, Ge):
            yield f"at least {rule.ge:,}"
        elif isinstance(rule, Gt):
            yield f"over {rule.gt:,}"
        elif isinstance(rule, Le):
            yield f"at most {rule.le:,}"
        elif isinstance(rule, Lt):
            yield f"under {rule.lt:,}"


def _command(command: click.Command, parent: click.Context, name: str, level: int) -> Iterator[str]:
    context = _context(command, parent, name)
    yield f"\n{'#' * level} {context.command_path}\n"
    yield _help(command, context)
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            found = command.get_command(context, sub)
            assert found is not None
            yield from _command(found, context, sub, level + 1)


def _context(command: click.Command, parent: click.Context | None, name: str) -> click.Context:
    options = {**command.context_settings, "max_content_width": WIDTH, "terminal_width": WIDTH}
    return click.Context(command, parent=parent, info_name=name, **options)


def _help(command: click.Command, context: click.Context) -> str:
    return f"```text\n{click.unstyle(command.get_help(context))}\n```"
