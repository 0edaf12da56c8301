"""The tree stays one that people find their way in."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP = {
    *("CHANGELOG.md", "Dockerfile", "LICENSE", "README.md", "SECURITY.md", "docker-compose.yml", "mkdocs.yml"),
    *("benchmarks", "deploy", "docs", "lua", "migrations", "notifier", "tasks", "tests", "pyproject.toml", "uv.lock"),
}
LONGEST = 400


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """What is under version control, relative to the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("needs a git checkout")
    return [Path(name) for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_the_top_level_is_known(files: list[Path]) -> None:
    assert {path.parts[0] for path in files if not path.parts[0].startswith(".")} <= TOP


def test_no_file_is_too_long_to_be_about_one_thing(files: list[Path]) -> None:
    sources = [path for path in files if path.suffix in {".py", ".lua"} and path.parts[0] != "tests"]
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in sources}
    assert not {str(path): length for path, length in lengths.items() if length > LONGEST}


def test_every_script_begins_by_saying_what_it_is(files: list[Path]) -> None:
    for path in (path for path in files if path.suffix == ".lua"):
        head = (ROOT / path).read_text().splitlines()[:3]
        assert any(line.startswith("-- ") and not line.startswith("-- with:") for line in head), path


def test_only_the_lock_names_where_packages_come_from(files: list[Path]) -> None:
    hosts = re.compile(rb"pypi\.org|pythonhosted\.org|registry\.npmjs")
    texts = [
        path
        for path in files
        if path.suffix not in {".png", ".svg", ".lock"} and path != Path("tests/packaging/test_tree.py")
    ]
    assert not [str(path) for path in texts if hosts.search((ROOT / path).read_bytes())]
