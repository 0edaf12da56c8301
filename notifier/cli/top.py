"""`notifier top`: how things go, live."""

from __future__ import annotations

import contextlib
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import click

from notifier.cli.numbers import Number
from notifier.cli.output import console, emit_json, example
from notifier.cli.status import PATIENCE_S, degraded
from notifier.cli.top_figures import Figures, Look, booked, figures, look
from notifier.cli.top_page import line, page, text
from notifier.errors import NotifierError
from notifier.settings import Settings
from notifier.survey import TIMEOUT_S, Survey, Surveyor

WINDOW_S = 5.0  # rates are over so long
REMEMBERED = 20  # of the little curve
KEY_S = 0.1
PATIENCE = 5
PLAIN_WIDTH = 100


@click.command(
    epilog=example(
        "notifier top",
        "notifier top --url http://web-1:8000/metrics --url http://worker-1:9100/metrics",
        "notifier top --once --json | python3 -m json.tool",
    )
)
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="URL",
    help="A /metrics to scrape, one for each host [default: the gateway of the settings].",
)
@click.option("--interval", type=Number(0.2, 3_600), default=1.0, show_default=True, help="Seconds between looks.")
@click.option("--once", is_flag=True, help="Look twice, an interval apart, print, and end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on one line for each look.")
def command(urls: tuple[str, ...], interval: float, once: bool, as_json: bool) -> None:
    """Show how things go, live: throughput, latency, what waits, grants by source, queues, servers.

    What is queued, waits and is replayed is asked of the servers themselves; latency, grants and clients come from
    /metrics. q or Ctrl-C ends it. Without a terminal it prints a line at each look. With --once the exit code is 1 if
    anything is degraded, as with `notifier status`; stderr says what.
    """
    settings = Settings()
    watch = Watch(settings, urls or (default_url(settings),), interval, timeout_s=PATIENCE_S if once else TIMEOUT_S)
    screen = console()
    with contextlib.closing(watch), contextlib.suppress(KeyboardInterrupt):
        if once:
            found = watch.first()
            emit_json(found._asdict()) if as_json else click.echo(
                text(page(found, (), _title(), PLAIN_WIDTH), PLAIN_WIDTH)
            )
            if problems := degraded(watch.survey):
                click.echo("\n".join(f"degraded: {problem}" for problem in problems), err=True)
                sys.exit(1)
        elif screen.is_terminal and not as_json:
            _live(watch, interval)
        else:
            while True:
                found = watch.next()
                emit_json(found._asdict()) if as_json else click.echo(line(found))


def default_url(settings: Settings) -> str:
    """The gateway of the settings, seen from here."""
    return f"http://{settings.gateway_here}/metrics"


class Watch:
    """Looks, again and again. `next` raises NotifierError for an address that cannot be one."""

    def __init__(
        self, settings: Settings, urls: tuple[str, ...], interval_s: float, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        for url in urls:
            if urlsplit(url).scheme not in ("http", "https"):
                raise NotifierError(f"--url {url!r:.200} must begin with http:// or https://")
        self._surveyor = Surveyor(settings, fresh_s=min(1.0, interval_s / 2), timeout_s=timeout_s)
        self._urls, self._interval_s = urls, interval_s
        self._looks: deque[Look] = deque(maxlen=max(2, round(WINDOW_S / interval_s) + 1))
        self.delivered: deque[float] = deque([0.0] * REMEMBERED, maxlen=REMEMBERED)

    def next(self) -> Figures:
        """The figures of now, an interval after the last ones."""
        if not self._looks:
            self._looks.append(look(self._surveyor, self._urls))
        time.sleep(max(0.0, self._looks[-1].at_s + self._interval_s - time.monotonic()))
        self._looks.append(look(self._surveyor, self._urls))
        *_, before, now = self._looks
        if lately := booked(before.survey.books, now.survey.books):  # none: the books are those of the last look
            self.delivered.append(lately["delivered"])
        return figures(self._looks[0], self._looks[-1])

    def first(self) -> Figures:
        """The first with rates: state Redis is not asked again at once where it took long to answer."""
        found = self.next()
        for _ in range(PATIENCE):
            if found.rates or not found.totals:
                break
            found = self.next()
        return found

    @property
    def survey(self) -> Survey:
        """What the servers said last."""
        return self._looks[-1].survey

    def close(self) -> None:
        """Let go of connections."""
        self._surveyor.close()


def _title() -> str:
    return f"notifier top, {time.strftime('%H:%M:%S')}"


def _live(watch: Watch, interval_s: float) -> None:
    """Until q. The looks are taken beside it, so that a server that is away does not keep it from ending.

    Raises what a look raises: a page that stands still would look like an installation that does.
    """
    from rich.live import Live

    screen = console()
    latest: deque[Figures] = deque(maxlen=1)
    failed: list[Exception] = []

    def run() -> None:
        try:
            while True:
                latest.append(watch.next())
        except Exception as error:
            failed.append(error)

    threading.Thread(target=run, name="notifier-top", daemon=True).start()
    with _keys() as pressed, Live(console=screen, screen=True, auto_refresh=False) as live:
        live.update("asking the servers ...", refresh=True)
        while not pressed():
            if failed:
                raise failed[0]
            with contextlib.suppress(IndexError):
                found = latest.pop()
                title = f"{_title()}, every {interval_s:g} s; q ends"
                live.update(page(found, tuple(watch.delivered), title, screen.width), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[], bool | None]]:
    """A function that waits a moment and says whether q was pressed. Without a keyboard it only waits."""
    if not sys.stdin.isatty():
        yield lambda: time.sleep(KEY_S)
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)

    def pressed() -> bool:
        ready, _, _ = select.select([sys.stdin], [], [], KEY_S)
        return bool(ready) and sys.stdin.read(1) in ("q", "Q", "")

    try:
        tty.setcbreak(sys.stdin)
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
