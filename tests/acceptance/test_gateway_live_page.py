"""The live page over a whole installation: a call appears, a burst waits, an outage shows grace and recovery."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from notifier import runtime
from notifier.embedded.valkey import Valkey
from notifier.gateway.auth import token_for
from notifier.lab.controls import Controls, Switch
from notifier.lab.stack import Stack
from notifier.producer import notify
from notifier.settings import Settings

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
CHROMIUM = Path("/usr/bin/chromium")
PATIENCE_MS = 60_000


@pytest.fixture
def page() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip("needs chromium: apt-get install chromium")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        yield page
        browser.close()


@contextlib.contextmanager
def ticking(controls: Controls) -> Iterator[None]:
    """The servers were started by pytest's thread and live as long as that; only the ticks are elsewhere."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(0.1):
            controls.tick()

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        controls.close()


@pytest.mark.slow
def test_live_page_shows_a_call_a_burst_an_outage_and_resumes(
    valkey: Valkey, fresh_valkey: Callable[..., Valkey], postgres_url: str, tmp_path: Path, page: Any
) -> None:
    limiter = fresh_valkey()
    variables = {
        "NOTIFIER_BROKER_URL": valkey.url(1),
        "NOTIFIER_REDIS_URL": valkey.url(0),
        "NOTIFIER_LIMITER_REDIS_URL": limiter.url(),
        "NOTIFIER_DATABASE_URL": postgres_url,
        "NOTIFIER_SECRET": secrets.token_urlsafe(48),
        "NOTIFIER_USER_LIMIT": "5/s burst 5",
        "NOTIFIER_LIVE_PAGE": "true",
    }
    settings = Settings(**{name.removeprefix("NOTIFIER_").lower(): value for name, value in variables.items()})
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    stack = Stack(variables | {"PROMETHEUS_MULTIPROC_DIR": str(metrics)}, tmp_path / "log", cwd=tmp_path)
    controls = Controls(
        settings.redis_url, {"limiter": Switch(limiter.freeze, limiter.thaw, lambda: is_awake(limiter))}
    )
    expect = playwright.expect

    def grants(source: str) -> int:
        return int(page.inner_text(f".grants [data-source={source}] dd").replace(",", ""))

    runtime.close()
    runtime.get(settings)
    try:
        stack.start()
        with ticking(controls):
            page.goto(f"{stack.gateway_url}/#token={token_for(settings, 'you', 3_600, live=True)}")
            page.wait_for_selector("#state[data-state=open]")

            notify("you", {"text": "from a call"})
            expect(page.locator("#own .payload").first).to_have_text("from a call", timeout=PATIENCE_MS)
            expect(page.locator("#river .payload").first).to_have_text("from a call", timeout=PATIENCE_MS)

            page.click("[data-do=burst]")
            page.wait_for_selector("#own .took.late")
            expect(page.locator("#replayed")).not_to_have_text("0", timeout=PATIENCE_MS)

            page.click("[data-name=limiter] [data-does=stop]")
            page.wait_for_selector("[data-name=limiter].down")
            before = grants("grace")
            page.click("[data-do=fan-out]")
            expect(page.locator(".grants [data-source=grace] dd")).not_to_have_text(str(before), timeout=PATIENCE_MS)
            page.click("[data-name=limiter] [data-does=start]")
            page.wait_for_selector("[data-name=limiter]:not(.down)")
            expect(page.locator("#waiting")).to_have_text("0", timeout=PATIENCE_MS)
            shared = page.inner_text(".grants [data-source=shared] dd")
            page.click("[data-do=burst]")
            expect(page.locator(".grants [data-source=shared] dd")).not_to_have_text(shared, timeout=PATIENCE_MS)

            stack.members["gateway"].kill()
            page.wait_for_selector("#own[data-state=waiting]", state="attached")
            notify("you", {"text": "while it was away"})
            stack.members["gateway"].start()
            expect(page.locator("#own .payload", has_text="while it was away")).to_have_count(1, timeout=PATIENCE_MS)
    finally:
        stack.stop()
        runtime.close()


def is_awake(server: Valkey) -> bool:
    """A frozen server is a process in state T."""
    stat = Path(f"/proc/{server.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] != "T"
