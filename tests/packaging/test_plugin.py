"""The channel in docs/channels.md, word for word, installed as the package it is, delivers for a worker's runtime."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from notifier.lab.stack import Stack
from notifier.ledger import Ledger
from notifier.redis.state import connect_state
from notifier.settings import Settings
from tests.receiver import Receiver, Script, receiver, says
from tests.support import eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
WORKER = """
import json, sys
from notifier import Notification, runtime
from notifier.wire import Message

runtime.act_as_worker()
parts = runtime.get()
note = Notification.create("anna", {"text": sys.argv[1]}, channel="sms", notification_id=sys.argv[2])
(accepted,) = parts.ledger.accept([note])
parts.pipeline.handle([Message(note, accepted_us=accepted.accepted_us, epoch=accepted.epoch)])
print(json.dumps(parts.ledger.counts()._asdict()))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the example is installed."""
    project, target = tmp_path_factory.mktemp("shop-sms"), tmp_path_factory.mktemp("site")
    blocks = re.findall(r"^```\w+\n# ([\w.]+)\n(.*?)^```", (ROOT / "docs/channels.md").read_text(), re.M | re.S)
    assert [name for name, _ in blocks] == ["pyproject.toml", "shop_sms.py"]
    for name, content in blocks:
        (project / name).write_text(content)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--target", target, project], check=True, timeout=300)
    return target


def give_webhooks(site: Path) -> None:
    """A second package, whose function knows the webhooks of everybody."""
    information = site / "shop_hooks-1.0.dist-info"
    information.mkdir(exist_ok=True)
    (site / "shop_hooks.py").write_text(
        "import os\n\ndef addresses(_, channel):\n    return os.environ['HOOK_URL'] if channel == 'webhook' else None\n"
    )
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-hooks\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[notifier.addresses]\nhooks = shop_hooks:addresses\n")


@pytest.fixture
def sms_api() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def named(settings: Settings) -> dict[str, str]:
    """As variables of the environment."""
    return {
        "NOTIFIER_BROKER_URL": settings.broker_url,
        "NOTIFIER_REDIS_URL": settings.redis_url,
        "NOTIFIER_LIMITER_REDIS_URL": settings.limiter_url,
        "NOTIFIER_DATABASE_URL": settings.database_url,
    }


def work(site: Path, settings: Settings, sms_api: Receiver, text: str, notification_id: str) -> dict[str, int]:
    """What the ledger has counted after a worker handled one notification."""
    env = {**os.environ, "PYTHONPATH": f"{site}:{ROOT}", "SMS_URL": sms_api.url(), **named(settings)}
    command = [sys.executable, "-c", WORKER, text, notification_id]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def test_the_example_delivers(site: Path, settings: Settings, sms_api: Receiver) -> None:
    assert work(site, settings, sms_api, "your parcel is here", "parcel-7")["delivered"] == 1
    (request,) = sms_api.requests
    assert json.loads(request.body) == {
        "to": "+15550100",
        "text": "your parcel is here",
        "key": "3:sms:4:anna:parcel-7",
    }


def test_what_it_says_of_failures_is_obeyed(site: Path, settings: Settings, sms_api: Receiver) -> None:
    sms_api.script = says(503)
    counts = work(site, settings, sms_api, "later", "parcel-8")
    assert (counts["delivered"], counts["parked"], counts["waiting"]) == (0, 0, 1)
    sms_api.script = says(400)
    assert work(site, settings, sms_api, "never", "parcel-9")["parked"] == 1


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_real_workers_deliver_by_it_and_by_webhook(
    site: Path, settings: Settings, sms_api: Receiver, pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are refused once, so both go through worker, dead letter and replay."""
    give_webhooks(site)
    secret = "whsec_" + base64.b64encode(b"k" * 32).decode()
    with receiver() as hook:
        monkeypatch.setenv("PYTHONPATH", f"{site}:{ROOT}")
        monkeypatch.setenv("SMS_URL", sms_api.url())
        monkeypatch.setenv("HOOK_URL", hook.url())
        for each in (sms_api, hook):
            each.script = once(503, then=204)
        webhooks = {"NOTIFIER_WEBHOOK_SECRET": secret, "NOTIFIER_WEBHOOK_ALLOW_NETWORKS": "127.0.0.1"}
        stack = Stack({**named(settings), **webhooks}, tmp_path / "logs", pool=pool, gateway=False)
        try:
            stack.start()
            send = "from notifier import notify\nfor c in ('sms', 'webhook'): notify('anna', {'text': 'hi'}, channel=c)"
            subprocess.run([sys.executable, "-c", send], env={**os.environ, **named(settings)}, check=True, timeout=120)
            eventually(lambda: min(len(sms_api.requests), len(hook.requests)) >= 2, timeout_s=120)
            ledger = Ledger(connect_state(settings.redis_url, 2.0), settings)
            eventually(lambda: ledger.counts().delivered == 2, timeout_s=60)
        finally:
            stack.stop()
    assert len({request.body for request in sms_api.requests}) == 1
    assert len({request.headers["webhook-id"] for request in hook.requests}) == 1
    for request in hook.requests:
        assert Webhook(secret).verify(request.body, request.headers)["payload"] == {"text": "hi"}


def once(status: int, *, then: int) -> Script:
    """The first request gets another answer than all later ones."""
    left = [says(status)]
    return lambda request, connection: (left.pop() if left else says(then))(request, connection)


def test_its_name_is_known(site: Path) -> None:
    code = "from notifier import channels; print(sorted(channels.known()), channels.get('sms').lease_s)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": f"{site}:{ROOT}"},
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.strip() == "['apprise', 'console', 'sms', 'webhook', 'websocket'] 10.0"
