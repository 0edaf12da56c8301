"""Every block of the recipes runs, as the files that it says it is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import jwt
import pytest

pytestmark = pytest.mark.slow
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("recipes.md", "from-rate-limit.md")
SECRET = "a secret of the tests, 32 characters"

DJANGO = """
import django
from django.conf import settings
django.setup()
from celery import current_app
from django.contrib.auth.models import AnonymousUser
from django.db import transaction
from django.test import RequestFactory
import shop.views as views

assert current_app.main == "shop" and current_app.conf.broker_url == "redis://localhost:1/0"
current_app.loader.import_default_modules()
assert "notifier.send_notification" in current_app.tasks
request = RequestFactory().post("/")
request.user = AnonymousUser()
request.user.pk = 42
with recording() as sent:
    with transaction.atomic():
        views.place_order(request)
        assert not sent
    one = sent.one(user_id=42, notification_id="order-77")
    try:
        with transaction.atomic():
            views.place_order(request)
            raise KeyError
    except KeyError:
        assert len(sent) == 1
token = json.loads(views.notifier_token(request).content)["token"]
"""
SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
CELERY_BROKER_URL = "redis://localhost:1/0"
"""
FASTAPI = """
from starlette.testclient import TestClient
from api import app
with recording() as sent, TestClient(app) as client:
    assert client.post("/orders/77?user_id=42").json() == {"order": 77}
    sent.one(user_id=42, notification_id="order-77")
    token = client.get("/notifier-token?user_id=42").json()["token"]
"""
FLASK = """
from notifier import NotAccepted
import web
client = web.app.test_client()
with recording() as sent:
    assert client.post("/orders/77/42").json == {"order": 77}
    sent.one(user_id=42, notification_id="order-77")
refused = client.post("/orders/78/42")
assert (refused.status_code, refused.json) == (503, {"retry_with": "order-78"})
token = client.get("/notifier-token/42").json["token"]
"""
RATE_LIMIT = """
import before, after
assert before.push.rate_limit == "2/s"
after.app.set_current()
import calls
with recording() as sent:
    calls.liked(1, "Anna")
    calls.remind(2)
sent.one(user_id=1, payload={"text": "Anna liked your post"}, category="like")
assert sent.one(user_id=2).ttl > 80_000 and sent.one(user_id=2).not_before
token = None
"""
CONFTEST = """
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
class Base(DeclarativeBase): pass
class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
@pytest.fixture
def order(): return Order(id=1)
@pytest.fixture
def session():
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session: yield session
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The files that the pages show, written out."""
    for page in PAGES:
        for indent, block in re.findall(r"^( *)```python\n(.*?)^ *```$", (DOCS / page).read_text(), re.S | re.M):
            text = textwrap.dedent(block) if indent else block
            named = re.match(r"# (\S+\.py)\n", text)
            assert named, f"{page}: a block does not say which file it is:\n{text}"
            file = tmp_path / named[1]
            assert not file.exists()
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
    (tmp_path / "shop" / "settings.py").write_text(SETTINGS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    return tmp_path


def run(site: Path, *command: str) -> str:
    env = {**os.environ, "NOTIFIER_SECRET": SECRET, "PYTHONPATH": str(site)}
    # Whoever is not recorded meets nobody.
    env |= {"NOTIFIER_BROKER_URL": "redis://localhost:1/0", "NOTIFIER_REDIS_URL": "redis://localhost:1/1"}
    env["DJANGO_SETTINGS_MODULE"] = "shop.settings"
    done = subprocess.run([sys.executable, *command], cwd=site, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("driver", [DJANGO, FASTAPI, FLASK, RATE_LIMIT], ids=["django", "fastapi", "flask", "celery"])
def test_an_app_of_the_recipes_sends_and_makes_tokens(site: Path, driver: str) -> None:
    code = f"import json\nfrom notifier.testing import recording\n{driver}\nprint(json.dumps(token))"
    token = json.loads(run(site, "-c", code).splitlines()[-1])
    if token is not None:
        assert jwt.decode(token, SECRET, algorithms=["HS256"])["sub"] == "42"


def test_the_tests_of_the_recipes_pass(site: Path) -> None:
    assert "2 passed" in run(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py")
