"""docker-compose.yml names only settings and commands that exist, and keeps the privileges it promises to keep."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from notifier.cli import main
from notifier.settings import PREFIX, Settings

ROOT = Path(__file__).resolve().parents[2]
OURS = {"migrate", "worker", "beat", "gateway"}
THEIRS = {"state", "limiter", "postgres"}


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    """The services as a person reads them, merge keys resolved."""
    loaded: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return loaded


def test_docker_compose_accepts_the_file(tmp_path: Path) -> None:
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("needs docker-compose: apt-get install docker-compose")
    for name in ("docker-compose.yml", "Dockerfile"):
        shutil.copy(ROOT / name, tmp_path)
    command = [program, "config", "--quiet"]
    result = subprocess.run(command, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_every_variable_is_a_setting(services: dict[str, dict[str, Any]]) -> None:
    settings = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    text = (ROOT / "docker-compose.yml").read_text() + (ROOT / "Dockerfile").read_text()
    named = set(re.findall(rf"{PREFIX}[A-Z_]+", text))
    assert named and named <= settings
    for service in OURS:
        assert {"NOTIFIER_BROKER_URL", "NOTIFIER_REDIS_URL", "NOTIFIER_LIMITER_REDIS_URL", "NOTIFIER_DATABASE_URL"} <= (
            set(services[service]["environment"])
        )


def test_the_values_are_good_ones(services: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """With compose's defaults filled in, Settings takes them and every host is a service."""
    for name, value in services["gateway"]["environment"].items():
        monkeypatch.setenv(name, re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value)))
    settings = Settings()
    urls = (settings.broker_url, settings.redis_url, settings.limiter_url, settings.database_url)
    assert {re.split(r"[@/:]+", url.partition("@")[2] or url.partition("//")[2])[0] for url in urls} == THEIRS
    assert settings.broker_url != settings.redis_url, "queues and ledger share no database"


def test_every_command_exists(services: dict[str, dict[str, Any]]) -> None:
    context = click.Context(main)
    assert set(services) == OURS | THEIRS
    for service in OURS:
        assert main.get_command(context, services[service]["command"][0]) is not None


def test_least_privilege(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "restart" in service, name
        assert name in OURS or service["user"] == {"postgres": "postgres"}.get(name, "valkey"), name
        assert name == "migrate" or "healthcheck" in service, name
        assert name == "gateway" or "ports" not in service, f"{name} is reachable from outside"
    last_stage = (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert re.search(r"^USER \d+$", last_stage, re.MULTILINE)
    assert "COPY . " not in last_stage


def test_the_image_gets_all_it_copies() -> None:
    """.dockerignore ignores everything but a list; what the Dockerfile copies must be on it."""
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert {name for names in copied for name in names.split()} == kept
    assert all((ROOT / name).exists() for name in kept)
