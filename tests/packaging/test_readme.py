"""The README's commands are pinned: what it tells a stranger to type must exist, and .ci/run runs the same line."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import click
import pytest

from notifier.cli import COMMANDS, main
from notifier.settings import PER_CHANNEL, PREFIX, Settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
EXTRACT = "awk '/^```/ { n++; next } n == 1' README.md"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_the_first_block_has_two_commands_the_demo_and_the_tests() -> None:
    first = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[0]
    language, text = first
    demo, tests = text.splitlines()
    assert language == "sh"
    assert demo.endswith("notifier demo")
    assert "pytest" in tests
    for line in (demo, tests):
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install -q ")


def test_ci_runs_the_second_command_as_it_stands_there() -> None:
    assert EXTRACT in (ROOT / ".ci" / "run").read_text()
    extracted = subprocess.run(["bash", "-c", EXTRACT], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert extracted.splitlines() == blocks(ROOT / "README.md", "sh")[0].splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_on_a_page_exists(page: Path) -> None:
    text = "\n".join(blocks(page, "sh") + re.findall(r"`([^`\n]+)`", page.read_text()))
    named = set(re.findall(r"(?:^|\s|/|`)notifier ([a-z][a-z-]+)", text))
    assert named <= set(main.list_commands(click.Context(main))), f"missing here: {named - set(COMMANDS)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_variable_on_a_page_is_a_setting(page: Path) -> None:
    settings = {name.upper() for name in Settings.model_fields}
    for name in re.findall(rf"\b{PREFIX}([A-Z][A-Z_]*[A-Z])\b", page.read_text()):
        field, cut, _ = name.partition("__")
        assert field in settings
        assert not cut or field.lower() in PER_CHANNEL, f"{name} cannot be set for one channel"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"(?:\]\(|src(?:set)?=\")(?!https?:|#|mailto:|/)([^)#\"]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_on_a_page_parses(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block)
