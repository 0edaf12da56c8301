"""The pages in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier import runtime
from notifier.embedded.valkey import Valkey
from notifier.gateway.auth import token_for
from notifier.lab.controls import Controls, Switch
from notifier.lab.proxy import Proxy
from notifier.redis.client import connect as connect_redis
from notifier.settings import Settings
from tests.gateway import Running, Writer
from tests.support import eventually

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
CHROMIUM = Path("/usr/bin/chromium")
DOCS = Path(__file__).parents[2] / "docs"
MARKUP = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip("needs chromium: apt-get install chromium")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that fails the test if anything in it went wrong."""
    context = browser.new_context()
    context.set_default_timeout(20_000)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if "Content Security" in message.text else None)
    yield page
    context.close()
    assert problems == []


@pytest.fixture
def redis(valkey: Valkey) -> Iterator[Redis]:
    with contextlib.closing(connect_redis(valkey.url(), 2.0)) as client:
        yield client


def link(gateway: Running, path: str = "/", user_id: str = "you", *, live: bool = True) -> str:
    return f"http://127.0.0.1:{gateway.port}{path}#token={token_for(gateway.settings, user_id, 600, live=live)}"


@pytest.fixture(autouse=True)
def own_runtime() -> Iterator[None]:
    """The gateway runs in this process, and so does what it sends through."""
    runtime.close()
    yield
    runtime.close()


@pytest.fixture
def gateway(settings: Settings) -> Iterator[Running]:
    with Running(settings.model_copy(update={"live_page": True})).running() as running:
        running.wait_until_ready()
        yield running


def test_bare_page_shows_the_feed_and_an_attackers_payload_as_text(gateway: Running, valkey: Valkey, page: Any) -> None:
    writer = Writer(valkey.url())
    writer.send("you", {"text": MARKUP})
    page.goto(link(gateway, "/feed", live=False))
    page.wait_for_selector("#feed li")
    assert page.inner_text("#feed li .payload") == MARKUP
    writer.send("you", {"other": MARKUP})
    page.wait_for_selector("#feed li:nth-child(2)")
    assert page.locator("#feed img, #feed script").count() == 0
    assert page.title() == "Notifier"
    assert "token" not in page.url


@contextlib.contextmanager
def serving(answers: dict[str, str]) -> Iterator[str]:
    """Some team's own web server. Yields its origin."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = answers.get(self.path)
            self.send_response(404 if text is None else 200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_page_of_the_docs_works_as_it_stands(settings: Settings, valkey: Valkey, page: Any) -> None:
    """On an origin of its own, which the gateway is told to allow."""
    answers: dict[str, str] = {}
    html = (DOCS / "gateway.md").read_text().partition("```html\n")[2].partition("```")[0]
    with serving(answers) as site, Running(settings.model_copy(update={"allowed_origins": site})).running() as gateway:
        gateway.wait_until_ready()
        html = html.replace("https://push.example.com", f"http://127.0.0.1:{gateway.port}")
        answers |= {"/": html, "/notifier-token": gateway.token("you")}
        writer = Writer(valkey.url())
        writer.send("you", {"text": "before"})
        page.goto(f"{site}/")
        page.wait_for_selector("li")
        writer.send("you", {"text": MARKUP})
        page.wait_for_selector("li:nth-child(2)")
        assert page.locator("li").all_inner_texts() == ["before", MARKUP]
        playwright.expect(page).to_have_title("(2) Inbox")
        page.click("#list")
        playwright.expect(page).to_have_title("Inbox")


def test_page_resumes_after_the_gateway_was_away(settings: Settings, valkey: Valkey, page: Any) -> None:
    """Each once, in order, whatever came while it was down."""
    writer = Writer(valkey.url())
    first = Running(settings)
    with first.running():
        first.wait_until_ready()
        page.goto(link(first, live=False))
        page.wait_for_selector("#state[data-state=open]")
        writer.send("you", {"text": "1"})
        page.wait_for_selector("#feed li")
    page.wait_for_selector("#state[data-state=waiting]")
    for number in (2, 3):
        writer.send("you", {"text": str(number)})
    with Running(settings, port=first.port).running():
        page.wait_for_selector("#feed li:nth-child(3)")
        writer.send("you", {"text": "4"})
        page.wait_for_selector("#feed li:nth-child(4)")
        assert page.locator("#feed .payload").all_inner_texts() == ["4", "3", "2", "1"]


def test_connection_that_died_without_a_word_is_found_by_the_page(gateway: Running, valkey: Valkey, page: Any) -> None:
    """Nothing comes through any more, and no end either: the page asks, waits, and connects anew."""
    writer = Writer(valkey.url())
    with contextlib.closing(Proxy(gateway.port)) as proxy:
        page.clock.install()
        with page.expect_websocket() as opened:
            page.goto(link(gateway, "/feed", live=False).replace(str(gateway.port), str(proxy.port)))
        page.wait_for_selector("#state[data-state=open]")
        with opened.value.expect_event("framereceived", lambda frame: "pong" in str(frame)):
            page.clock.fast_forward(31_000)
        page.clock.fast_forward(11_000)
        assert page.get_attribute("#state", "data-state") == "open"
        proxy.hold()
        writer.send("you", {"text": "unheard"})
        page.clock.fast_forward(31_000)
        page.clock.fast_forward(11_000)
        page.wait_for_selector("#state[data-state=waiting]")
        proxy.release()
        page.clock.fast_forward(1_000)
        page.wait_for_selector("#feed li")
        assert page.locator("#feed .payload").all_inner_texts() == ["unheard"]


def test_live_page_shows_everybodys_and_marks_its_own_as_read(gateway: Running, valkey: Valkey, page: Any) -> None:
    writer = Writer(valkey.url())
    page.goto(link(gateway))
    page.wait_for_selector("#state[data-state=open]")
    page.wait_for_selector("#own[data-state=open]", state="attached")
    eventually(lambda: connected_viewer(valkey))
    for text in ("hello", MARKUP):
        writer.send("you", {"text": text})
        writer.send(f"<b>{text}", {"text": text})
    page.wait_for_selector("#river li:nth-child(4)")
    assert page.locator("#river .payload").all_inner_texts().count(MARKUP) == 2
    assert page.locator("#main li img, #main li script, #main li b b").count() == 0
    playwright.expect(page.locator("#unread")).to_have_text("2")
    page.click("#read")
    playwright.expect(page.locator("#unread")).to_have_text("0")


def connected_viewer(valkey: Valkey) -> bool:
    """Whether the live page's listener has subscribed to all feeds."""
    with contextlib.closing(connect_redis(valkey.url(), 2.0)) as client:
        return bool(client.pubsub_numpat())


def test_buttons_send_through_the_ledger(gateway: Running, redis: Redis, page: Any) -> None:
    page.goto(link(gateway))
    page.wait_for_selector("#state[data-state=open]")
    page.fill("#user", "somebody")
    page.click("[data-do=one]")
    page.click("[data-do=fan-out]")
    eventually(lambda: len(list(redis.scan_iter("notifier:v1:*seq*", count=1_000))) >= 101)
    page.wait_for_selector(".servers li")
    assert page.locator(".servers button").count() == 0  # nobody offers to stop them
    page.fill("#user", "")
    page.click("[data-do=one]")
    playwright.expect(page.locator("#problem")).to_contain_text("user_id")


def test_servers_are_stopped_and_started_where_a_lab_allows_it(
    settings: Settings, fresh_valkey: Callable[..., Valkey], valkey: Valkey, page: Any
) -> None:
    limiter = fresh_valkey()
    live = settings.model_copy(update={"live_page": True, "limiter_redis_url": limiter.url()})
    controls = Controls(valkey.url(), {"limiter": Switch(limiter.kill, limiter.restart, lambda: limiter.running)})

    def wait_for(selector: str) -> None:
        deadline_s = time.monotonic() + 20
        while not page.locator(selector).count():
            controls.tick()
            assert time.monotonic() < deadline_s, f"no {selector}"
            page.wait_for_timeout(50)

    with Running(live).running() as gateway, contextlib.closing(controls):
        gateway.wait_until_ready()
        page.goto(link(gateway))
        wait_for("[data-name=limiter] button[data-does=stop]")
        page.click("[data-name=limiter] button")
        wait_for("[data-name=limiter].down button[data-does=start]")
        assert not limiter.running
        page.click("[data-name=limiter] button")
        wait_for("[data-name=limiter]:not(.down) button[data-does=stop]")
        assert limiter.running


def test_live_page_is_not_for_users(gateway: Running, valkey: Valkey, page: Any) -> None:
    page.goto(link(gateway, user_id="ann", live=False))
    page.wait_for_selector("#state[data-state=waiting]")
    Writer(valkey.url()).send("bob", {"text": "for bob"})
    Writer(valkey.url()).send("ann", {"text": "for ann"})
    page.wait_for_selector("#own li")
    assert "for bob" not in page.inner_text("body")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_nothing_overflows_and_everything_can_be_read(
    gateway: Running, valkey: Valkey, browser: Any, scheme: str, width: int
) -> None:
    """No sideways scrolling, and text with a contrast of 4.5 to 1 or more."""
    writer = Writer(valkey.url())
    for text in ("short", "a long one " * 60, "x" * 500):
        writer.send("you", {"text": text})
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    try:
        for path in ("/", "/feed"):
            page = context.new_page()
            page.goto(link(gateway, path))
            page.wait_for_selector("#own li:nth-child(3)" if path == "/" else "#feed li:nth-child(3)")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(LOW_CONTRAST) == []
    finally:
        context.close()


LOW_CONTRAST = """() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = node => {
    for (let n = node; n; n = n.parentElement) {
      const colour = parse(getComputedStyle(n).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  return [...document.body.querySelectorAll("*")]
    .filter(node => [...node.childNodes].some(c => c.nodeType === 3 && c.data.trim()) && node.offsetParent)
    .map(node => [node, light(parse(getComputedStyle(node).color)), light(behind(node))])
    .filter(([, a, b]) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5)
    .map(([node]) => `${node.tagName}.${node.className}: ${node.textContent.slice(0, 30)}`);
}"""
