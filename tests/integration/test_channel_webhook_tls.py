"""Webhooks over TLS: the name is checked, though the connection goes to an address that was looked up before."""

from __future__ import annotations

import base64
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from notifier.channels import RetryAt, Sent
from notifier.channels.addresses import Addresses
from notifier.channels.webhook import WebhookChannel
from notifier.settings import Settings
from tests.receiver import Receiver, a_delivery, receiver

NAME = "hooks.example.test"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Self-signed, for NAME; the key lies beside it."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl: apt-get install openssl")
    path = tmp_path_factory.mktemp("tls") / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}",
         "-addext", f"subjectAltName=DNS:{NAME}", "-keyout", path.with_name("key.pem"), "-out", path],
        check=True, capture_output=True,
    )  # fmt: skip
    return path


@pytest.fixture
def asked() -> list[str | None]:
    """The names that clients asked the receiver for (SNI)."""
    return []


@pytest.fixture
def hook(certificate: Path, asked: list[str | None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver that every name of example.test leads to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    real = socket.getaddrinfo

    def lookup(host: str, port: int, *args: object, **kwargs: object) -> object:
        return real("127.0.0.1" if host.endswith(".example.test") else host, port, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with receiver(tls=context) as made:
        yield made


def deliver(url: str, timeout_s: float = 5.0) -> object:
    settings = Settings(
        webhook_secret="whsec_" + base64.b64encode(b"k" * 32).decode(),
        webhook_allow_networks="127.0.0.1",
        webhook_timeout=timeout_s,
    )
    (outcome,) = WebhookChannel(settings, Addresses([lambda _user, _channel: url])).deliver([a_delivery()])
    return outcome


def test_the_name_is_asked_for_and_verified(
    hook: Receiver, asked: list[str | None], certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert deliver(f"https://{NAME}:{hook.port}/") == Sent()
    assert asked == [NAME]
    assert hook.requests[0].headers["host"] == f"{NAME}:{hook.port}"


def test_another_name_is_not_accepted(hook: Receiver, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    where = f"other.example.test:{hook.port}"
    assert deliver(f"https://{where}/") == RetryAt(f"{where}: its certificate is not valid")
    assert not hook.requests


def test_an_unknown_authority_is_not_accepted(hook: Receiver) -> None:
    where = f"{NAME}:{hook.port}"
    assert deliver(f"https://{where}/") == RetryAt(f"{where}: its certificate is not valid")
    assert not hook.requests


def test_who_does_not_speak_tls_gets_nothing() -> None:
    with receiver() as plain:
        outcome = deliver(f"https://127.0.0.1:{plain.port}/", timeout_s=0.5)
        assert isinstance(outcome, RetryAt)
        assert not [request for request in plain.requests if request.body]
