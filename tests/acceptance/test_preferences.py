"""A team's function, installed as a package beside a real worker and beat."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from notifier import runtime
from tasks import send_notification
from tests.acceptance.conftest import PATIENCE_S, Site
from tests.support import eventually

FUNCTION = """
from datetime import time
from pathlib import Path
from notifier.preferences import Preferences, QuietHours

def preferences(user_id):
    quiet = None if Path({morning!r}).exists() else QuietHours(time({start}), time({end}), "UTC")
    return Preferences({{"marketing"}}, quiet if user_id == "sleeper" else None)
"""


@pytest.mark.slow
def test_opt_outs_and_quiet_hours_by_a_worker(make_site: Callable[..., Site], tmp_path: Path) -> None:
    package, morning = tmp_path / "package", tmp_path / "morning"
    info = package / "shop_preferences-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-preferences\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[notifier.preferences]\nshop = shop_preferences:preferences\n")
    now = datetime.now(UTC)
    start, end = now - timedelta(hours=3), now + timedelta(hours=3)
    (package / "shop_preferences.py").write_text(FUNCTION.format(morning=str(morning), start=start.hour, end=end.hour))
    site = make_site()
    path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
    site.env |= {"PYTHONPATH": path, "NOTIFIER_PREFERENCES_SECONDS": "0"}
    site.worker()
    site.beat()
    for user in ("sleeper", "other"):
        send_notification.delay(user, "advert", category="marketing")
        send_notification.delay(user, "hello")
    send_notification.delay("sleeper", "alarm", priority="critical")
    eventually(lambda: site.counts.dropped == 2 == site.counts.delivered, timeout_s=PATIENCE_S)
    assert (site.payloads("other"), site.payloads("sleeper")) == (["hello"], ["alarm"])
    eventually(lambda: runtime.get().store.counts().waiting == 1, timeout_s=PATIENCE_S)
    morning.touch()
    with runtime.get().store._get_engine().begin() as connection:
        connection.exec_driver_sql("UPDATE dead_letters SET retry_at = now()")
    counts = site.settled(5)
    assert (counts.delivered, counts.replayed, counts.dropped) == (3, 1, 2)
    assert site.payloads("sleeper") == ["alarm", "hello"]
