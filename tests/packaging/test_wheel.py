"""The artefact people install, in fresh environments outside the checkout."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from notifier.cli import EXTRA_OF
from notifier.embedded.process import end, spawn, tail
from notifier.settings import Settings
from tests.support import eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
BARE = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}

SHOP = """
import os
from celery import Celery

app = Celery("shop", broker=os.environ["NOTIFIER_BROKER_URL"], include=["tasks"])
"""
SEND = """
from {module} import app
from tasks import send_notification

print(send_notification.delay(42, {{"text": "by delay"}}).id)
"""
NOTIFY = """
from notifier import notify

print(notify(42, {"text": "by name"}))
"""


def run(
    *command: str | Path, cwd: Path, timeout_s: float = 300, check: bool = True, env: dict[str, str] = BARE
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0 or not check, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a release is: the sdist first, the wheel from it."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


def installed(wheel: Path, folder: Path, extras: str = "") -> Path:
    """The bin directory of a fresh environment with the wheel in it."""
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    run(folder / "bin" / "pip", "install", "--quiet", f"{wheel}{extras}", cwd=folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheel, tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def full(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheel, tmp_path_factory.mktemp("full"), "[embedded,gateway]")


def test_it_holds_two_packages_and_the_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in names} == {"notifier", "tasks"}
    for data, inside in (("lua", "notifier/_lua"), ("migrations", "notifier/_migrations")):
        files = {path for path in (ROOT / data).rglob("*") if path.suffix in {".lua", ".py", ".mako"}}
        assert files
        assert {f"{inside}/{path.relative_to(ROOT / data)}" for path in files} <= names
    for package in ("notifier", "tasks"):
        assert {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py")} <= names
    assert "notifier/py.typed" in names
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name]


def test_it_says_its_version_and_finds_its_data(bare: Path, tmp_path: Path) -> None:
    version = run(bare / "notifier", "--version", cwd=tmp_path).stdout.strip()
    assert version.startswith("notifier, version ")
    assert run(bare / "python", "-m", "notifier", "--version", cwd=tmp_path).stdout.strip() == version
    code = (
        "import sys, notifier\nfrom notifier import resources\n"
        "assert notifier.__file__.startswith(sys.prefix) and resources.migrations().is_relative_to(sys.prefix)\n"
        "print(all(resources.lua(name) for name in sys.argv[1:]))"
    )
    scripts = [path.stem for path in (ROOT / "lua").glob("*.lua")]
    assert run(bare / "python", "-c", code, *scripts, cwd=tmp_path).stdout == "True\n"
    assert list((resources_of(bare)).glob("versions/*.py"))
    run(bare / "pip", "check", cwd=tmp_path)


def resources_of(binaries: Path) -> Path:
    (folder,) = binaries.parent.glob("lib/python*/site-packages/notifier/_migrations")
    return folder


def test_without_extras_it_has_none_of_their_packages_and_says_what_is_missing(bare: Path, tmp_path: Path) -> None:
    code = f"from importlib.util import find_spec\nprint([name for name in {sorted(EXTRA_OF)!r} if find_spec(name)])"
    assert run(bare / "python", "-c", code, cwd=tmp_path).stdout == "[]\n"
    for command, extra in (("gateway", "gateway"), ("up", "embedded"), ("demo", "embedded")):
        done = run(bare / "notifier", command, cwd=tmp_path, check=False)
        assert done.returncode == 1
        assert f"pip install 'celery-notifier[{extra}]'" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_users_own_tasks_module_does_not_get_in_the_way(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("raise SystemExit('the wrong tasks')\n")
    for command in ("worker", "beat"):
        for start in ([bare / "notifier"], [bare / "python", "-m", "notifier"]):
            done = run(*start, command, "--", "--help", cwd=tmp_path)
            assert "--loglevel" in done.stdout


@pytest.mark.parametrize("module", ["tasks", "shop"])
def test_an_app_outside_the_checkout_sends_and_receives(
    bare: Path, settings: Settings, tmp_path: Path, module: str
) -> None:
    """With the app that comes with it, and with a Celery app of its own that includes the tasks."""
    urls = ("broker_url", "redis_url", "limiter_redis_url", "database_url")
    env = BARE | {f"NOTIFIER_{name.upper()}": str(getattr(settings, name)) for name in urls}
    (tmp_path / "shop.py").write_text(SHOP)
    for name, code in (("send.py", SEND.format(module=module)), ("notify.py", NOTIFY)):
        (tmp_path / name).write_text(code)
    log = tmp_path / "worker.log"
    worker = spawn([str(bare / "celery"), "-A", module, "worker"], log=log, env=env, cwd=tmp_path)
    try:
        sent = {run(bare / "python", name, cwd=tmp_path, env=env).stdout.strip() for name in ("send.py", "notify.py")}
        assert len(sent) == 2

        def received() -> dict[str, str]:
            lines = run(bare / "notifier", "feed", "42", "--json", cwd=tmp_path, env=env).stdout.splitlines()
            frames = [json.loads(line) for line in lines]
            return {frame["notification_id"]: frame["payload"]["text"] for frame in frames}

        eventually(lambda: set(received()) == sent, timeout_s=60, interval_s=0.5)
        assert set(received().values()) == {"by delay", "by name"}
    except AssertionError:
        print(tail(log, 40))
        raise
    finally:
        ended = end(worker, signal.SIGTERM, 30)
    assert ended == 0


def test_the_demo_runs_from_it(full: Path, tmp_path: Path) -> None:
    done = run(full / "notifier", "demo", "--seconds", "5", "--json", cwd=tmp_path)
    counted = json.loads(done.stdout.splitlines()[-1])
    for name in ("lost", "duplicates", "disorder", "limit_excess"):
        assert counted[name] == 0, counted
    for name in ("delivered", "noisy_deferred", "replayed"):
        assert counted[name] > 0, counted
