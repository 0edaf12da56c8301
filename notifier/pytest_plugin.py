"""The pytest plugin: one fixture. Costs a project nothing until a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from notifier.testing import SentNotifications


@pytest.fixture
def sent_notifications() -> Iterator[SentNotifications]:
    """What the code under test sends through notifier, recorded instead of sent; no server is needed."""
    from notifier.testing import recording

    with recording() as sent:
        yield sent
