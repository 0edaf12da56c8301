"""Workers log calmly: what is no trouble is no warning."""

from __future__ import annotations

import logging

import pytest
from kombu.transport.virtual.base import W_NO_CONSUMERS

from tasks import quiet


def test_what_goes_back_at_the_end_of_a_worker_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    quiet.install()
    caplog.set_level(logging.INFO)
    log = logging.getLogger("kombu.transport.virtual.base")
    log.warning(W_NO_CONSUMERS, "notifier.normal")
    log.warning("another matter")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "a message that came while this worker was ending went back to notifier.normal, for another one"),
        ("WARNING", "another matter"),
    ]
