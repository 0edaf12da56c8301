"""What the tests stand on: a skip fails in CI, and waiting for a condition says what it waited for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import eventually

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "ci", "code"),
    [
        ("import pytest\ndef test(): pytest.skip('needs a server: apt-get install server')", "true", 1),
        ("import pytest\npytest.skip('needs a server: apt-get install server', allow_module_level=True)", "true", 2),
        ("import pytest\n@pytest.mark.xfail\ndef test(): assert False", "true", 0),
        ("import pytest\ndef test(): pytest.skip('needs a server')", "", 0),
    ],
)
def test_a_skip_is_a_failure_in_ci_and_says_why(tmp_path: Path, source: str, ci: str, code: int) -> None:
    (tmp_path / "test_it.py").write_text(source)
    environment = os.environ | {"CI": ci, "PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("apt-get install server" in done.stdout) == bool(code)


def test_waiting_returns_what_became_true_and_shows_what_did_not() -> None:
    values = iter([0, 0, 7])
    assert eventually(lambda: next(values), interval_s=0.001) == 7
    with pytest.raises(AssertionError, match=r"the last value was \[\]"):
        eventually(list, timeout_s=0.01)

    def never() -> bool:
        raise AssertionError("because")

    with pytest.raises(AssertionError, match="because"):
        eventually(never, timeout_s=0.01)
