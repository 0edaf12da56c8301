"""Whatever a command is given, it says what is wrong with it and ends; it never ends in a traceback."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from notifier.cli import main
from tests.support import free_port
from tests.unit.test_cli_commands import every_command

ODD = (
    *("", " ", "nan", "inf", "-inf", "-1", "0", "1e400", "1.5", "9" * 20, "9" * 5_000, "\u0661", "true", "null", "-"),
    *("--", "a" * 70_000, "\u00e9" * 600, "\udcff", "\n", "\x1b[31m", "%", "%s", "*", "2/s", "{}", "[", '"x"', "../.."),
)
LASTING = {"up", "demo", "worker", "beat", "gateway", "torture", "simulate", "listen", "top"}  # parsed here, not run


def command_of(path: tuple[str, ...]) -> click.Command:
    command: click.Command = main
    for name in path:
        assert isinstance(command, click.Group)
        below = command.get_command(click.Context(command), name)
        assert below is not None
        command = below
    return command


def odd_calls(command: click.Command) -> list[list[str]]:
    """Each argument and each option with every odd value, the rest sound."""
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    options = [p for p in command.params if isinstance(p, click.Option) and not p.is_flag]
    sound = ['"x"' if "payload" in str(argument.name) else "ann" for argument in arguments]
    if command.name == "set":  # [USER] LIMIT, in one argument
        arguments, sound = arguments * 2, ["ann", "2/s"]
    return [
        *([*sound[:place], odd, *sound[place + 1 :]] for place in range(len(arguments)) for odd in ODD),
        *([f"{option.opts[-1]}={odd}", *sound] for option in options for odd in ODD),
    ]


COMMANDS = [path for path in every_command() if path and not isinstance(command_of(path), click.Group)]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_odd_values_are_refused_or_taken(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    for name, value in {
        "REDIS_URL": f"redis://{nobody}/0",
        "BROKER_URL": f"redis://{nobody}/0",
        "DATABASE_URL": f"postgresql://nobody@{nobody}/nothing",
        "SECRET": "s" * 40,
    }.items():
        monkeypatch.setenv(f"NOTIFIER_{name}", value)
    for call in odd_calls(command_of(path)):
        told = [argument[:40] for argument in call]
        if path[0] in LASTING:
            try:
                taken = command_of(path).make_context(path[-1], list(call)).params
            except click.UsageError:
                continue
            assert not any(isinstance(value, float) and math.isnan(value) for value in taken.values()), told
        else:
            result = CliRunner().invoke(main, [*path, *call], input="")
            assert result.exception is None or isinstance(result.exception, SystemExit), (told, result.exception)
            assert "Traceback" not in result.output, told


def test_what_an_encoding_cannot_say_is_escaped() -> None:
    code = "import sys\nfrom notifier.cli import main\nmain(['doctor', '--app', 'caf\\u0113'], standalone_mode=False)\n"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONIOENCODING": "latin-1"}, check=False
    )
    assert r"caf\u0113 cannot be loaded" in run.stdout
    assert "Traceback" not in run.stderr


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="no /dev/full here")
def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "notifier", "config"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (run.returncode, run.stderr) == (1, "Error: No space left on device\n")


@pytest.mark.parametrize(
    ("place", "problem"),
    [("nowhere/curve.svg", "'nowhere' is no folder that can be written to"), (".", "is a directory")],
)
def test_a_picture_that_cannot_be_written_is_refused_before_the_work(place: str, problem: str) -> None:
    result = CliRunner().invoke(main, ["simulate", "--plot", place, "--seconds", "86400"])
    assert result.exit_code == 2
    assert problem in result.output


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="no /dev/full here")
def test_a_picture_that_could_not_be_written_is_said() -> None:
    small = ["--seconds", "1", "--users", "10", "--processes", "1", "--rate", "10"]
    result = CliRunner().invoke(main, ["simulate", "--plot", "full.svg", *small])
    assert (result.exit_code, Path("full.svg").exists()) == (0, True)
    Path("full.svg").unlink()
    Path("full.svg").symlink_to("/dev/full")
    result = CliRunner().invoke(main, ["simulate", "--plot", "full.svg", *small])
    assert result.exit_code == 1
    assert "'full.svg': No space left on device" in result.output


def test_logs_that_cannot_be_kept_are_said_before_the_work() -> None:
    Path("file").touch()
    result = CliRunner().invoke(main, ["torture", "--keep", "file/logs", "--seconds", "86400"])
    assert result.exit_code == 1
    assert "file/logs cannot be made: Not a directory" in result.output
