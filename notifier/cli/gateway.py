"""`notifier gateway`: the web server that pushes feeds."""

from __future__ import annotations

import contextlib
import logging

import click

from notifier import logs
from notifier.cli.output import example
from notifier.cli.signals import ended_by_signals
from notifier.errors import NotifierError


@click.command(epilog=example("notifier gateway", "notifier gateway --host 0.0.0.0 --port 8080"))
@click.option("--host", help="Address to listen on [default: NOTIFIER_GATEWAY_HOST, 127.0.0.1].")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port, 0 for any [default: NOTIFIER_GATEWAY_PORT, 8000].")
def command(host: str | None, port: int | None) -> None:
    """Run the gateway: pushes each user's feed to that user's open pages (/ws), until Ctrl-C or TERM.

    Any number of them may run beside each other; they share nothing but state Redis. Needs NOTIFIER_SECRET.
    """
    from notifier.gateway.server import allow_many_connections, listen, server
    from notifier.settings import Settings

    settings = Settings()
    logs.setup(settings.log_format)
    gateway = server(settings)
    address = settings.gateway_host if host is None else host, settings.gateway_port if port is None else port
    try:
        listener = listen(*address)
    except OSError as error:
        raise NotifierError(f"cannot listen on {address[0]} port {address[1]}: {error.strerror}") from None
    allow_many_connections()
    logging.getLogger("notifier.gateway").info("the gateway listens on %s port %d", *listener.getsockname()[:2])
    with ended_by_signals(), contextlib.suppress(KeyboardInterrupt):
        gateway.run([listener])  # drains, and then raises the signal that ended it once more
