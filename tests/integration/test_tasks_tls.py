"""`rediss://` is verified by default: kombu by itself connects to anybody."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from notifier import producer
from notifier.embedded.valkey import Valkey
from notifier.settings import Settings
from tasks.app import create_app


def _pipe(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            sink.sendall(data)
    except OSError:
        pass
    finally:
        sink.close()


def _serve(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        try:
            client = context.wrap_socket(plain, server_side=True)
        except OSError:  # a client that does not trust the certificate
            continue
        server = socket.create_connection(("127.0.0.1", port))
        for pair in ((client, server), (server, client)):
            threading.Thread(target=_pipe, args=pair, daemon=True).start()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Self-signed, for localhost; the key lies beside it."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl: apt-get install openssl")
    path = tmp_path_factory.mktemp("tls") / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", path.with_name("key.pem"), "-out", path],
        check=True, capture_output=True,
    )  # fmt: skip
    return path


@pytest.fixture
def tls_url(valkey: Valkey, certificate: Path) -> Iterator[str]:
    """The broker behind TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener, context, valkey.port), daemon=True).start()
        yield f"rediss://:{valkey.password}@localhost:{listener.getsockname()[1]}/1"
        listener.shutdown(socket.SHUT_RDWR)


def _ours(settings: Settings) -> Celery:
    return create_app(settings)


def _senders(settings: Settings) -> Celery:
    return producer._bare_app(0, settings.broker_url)


def _connects(app: Celery) -> bool:
    with app.connection_for_write() as connection:
        connection.transport_options = {**connection.transport_options, "max_retries": 1, "interval_start": 0.01}
        try:
            connection.default_channel.client.ping()
        except Exception as error:
            assert "CERTIFICATE_VERIFY_FAILED" in repr(error) + repr(error.__cause__), error
            return False
        return True


@pytest.mark.parametrize("make", [_ours, _senders])
def test_an_unknown_certificate_is_refused_unless_told(settings: Settings, tls_url: str, make: type) -> None:
    assert not _connects(make(settings.model_copy(update={"broker_url": tls_url})))
    assert _connects(make(settings.model_copy(update={"broker_url": f"{tls_url}?ssl_cert_reqs=none"})))


@pytest.mark.parametrize("make", [_ours, _senders])
def test_a_known_certificate_must_be_the_hosts(settings: Settings, tls_url: str, certificate: Path, make: type) -> None:
    trusted = f"{tls_url}?ssl_ca_certs={certificate}"
    assert _connects(make(settings.model_copy(update={"broker_url": trusted})))
    other = trusted.replace("@localhost:", "@127.0.0.1:")
    assert not _connects(make(settings.model_copy(update={"broker_url": other})))
