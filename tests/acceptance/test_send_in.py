"""send_in with a real worker and beat: what commits arrives once, whoever dies; what does not, never."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from notifier import runtime, send_in
from tests.acceptance.conftest import PATIENCE_S, Site
from tests.support import eventually

pytestmark = pytest.mark.slow

DYING = """
import os, sys
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session
from notifier import send_in
event.listen(Session, "after_commit", lambda _: os._exit(3))  # before ours
with Session(create_engine(sys.argv[1])) as session:
    for n in range(40, 50):
        send_in(session, n % 5, n)
    session.commit()
"""


def test_committed_once_or_never(make_site: Callable[..., Site], postgres_url: str) -> None:
    site = make_site(user_limit="30/s burst 2")
    site.worker()
    site.beat()
    with Session(create_engine(postgres_url)) as session:
        for n in range(40):
            send_in(session, n % 5, n)
            if n % 4 == 3:
                session.rollback()
            elif n % 4 == 1:
                session.commit()
        session.commit()
    done = subprocess.run([sys.executable, "-c", DYING, postgres_url], env=site.env, cwd=site.directory, check=False)
    assert done.returncode == 3
    expected = [n for n in range(40) if n % 4 < 2] + list(range(40, 50))
    arrived: Counter[int] = Counter()

    def all_there() -> bool:
        arrived.clear()
        arrived.update(payload for user in range(5) for payload in site.payloads(user))
        return len(arrived) >= len(expected)

    eventually(all_there, timeout_s=PATIENCE_S)
    site.settled(len(expected))
    eventually(lambda: runtime.get().store.counts() == (0, 0), timeout_s=PATIENCE_S)
    assert all_there() and arrived == Counter(expected)
