"""The documentation's site: built without a warning, loads nothing from elsewhere, and leaves no page out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from notifier.gateway.app import create_app
from notifier.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
LOADED = re.compile(r'(?:<(?:script|img|iframe|source)[^>]*\ssrc|<link[^>]*\shref)="?((?:https?:)?//[^">\s]+)')
IMPORTED = re.compile(r"(?:url\(|@import\s)\s*[\"']?((?:https?:)?//[^\"')]+)")


def test_the_page_on_http_has_every_path_of_the_gateway() -> None:
    app = create_app(Settings(secret="s" * 32, live_page=True))
    paths = {str(getattr(route, "path", "")) for route in app.routes}
    text = (ROOT / "docs" / "http.md").read_text()
    assert "/sse" in paths
    assert not [path for path in paths if f"`{path}`" not in text]


def test_every_test_that_a_page_names_is_there() -> None:
    named = {
        found
        for page in (ROOT / "docs").glob("*.md")
        for found in re.findall(r"\b(tests/\w+/\w+\.py)(?:::(\w+))?", page.read_text())
    }
    assert len(named) > 30
    for path, test in sorted(named):
        assert (ROOT / path).is_file(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text(), f"{path}::{test}"


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="needs the extra 'docs'")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr[-3_000:]
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert {"index.html", "settings.html", "commands.html", "changelog.html"} <= {page.name for page in pages}
    foreign = {found for page in pages for found in LOADED.findall(page.read_text())}
    foreign |= {found for sheet in (tmp_path / "site").rglob("*.css") for found in IMPORTED.findall(sheet.read_text())}
    assert not foreign
