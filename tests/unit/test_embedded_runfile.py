"""run.env: what it holds is read back as it was, by its owner only, and a killed run leaves no lie."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from notifier.errors import NotifierError
from notifier.lab import runfile
from notifier.settings import RUN_ENV, Settings, raw_values


def test_settings_are_read_back_as_they_were_written_and_by_nobody_else(tmp_path: Path) -> None:
    settings = {
        "NOTIFIER_DATABASE_URL": "postgresql://me:p%27%23%20%5C%25@db/notifier?options=-c%20a%3Db",
        "NOTIFIER_SECRET": "a 'secret' with \\ and # and \"quotes\", 32 characters",
    }
    before = os.umask(0)
    try:
        with runfile.only_one():
            runfile.write(settings)
            assert raw_values() == settings
            assert stat.S_IMODE(RUN_ENV.stat().st_mode) == 0o600
            assert stat.S_IMODE(RUN_ENV.parent.stat().st_mode) == 0o700
    finally:
        os.umask(before)
    assert raw_values() == {}


def test_a_dollar_in_a_url_is_not_taken_for_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "somebody")
    with runfile.only_one():
        runfile.write({"NOTIFIER_REDIS_URL": "redis://:pa${USER}ss@cache/0"})
        assert Settings().redis_url == "redis://:pa%24{USER}ss@cache/0"


def test_the_directory_has_room_for_one_and_what_a_killed_one_left_is_not_believed(tmp_path: Path) -> None:
    held = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from notifier.lab import runfile\n"
            "with runfile.only_one():\n"
            "    runfile.write({'NOTIFIER_REDIS_URL': 'redis://gone'})\n"
            "    print('held', flush=True)\n"
            "    input()\n",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert held.stdout
    assert held.stdout.readline() == b"held\n"
    with pytest.raises(NotifierError, match=f"process {held.pid}.*kill {held.pid}"), runfile.only_one():
        pass
    assert RUN_ENV.exists()
    held.kill()
    held.communicate()
    assert RUN_ENV.exists()
    with runfile.only_one():
        assert raw_values() == {}


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    RUN_ENV.parent.touch()
    with pytest.raises(NotifierError, match=r"\.notifier.* cannot be used"), runfile.only_one():
        pass
