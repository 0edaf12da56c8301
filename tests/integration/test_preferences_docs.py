"""What docs/preferences.md shows is what runs."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import time
from pathlib import Path
from typing import Any

import pytest

from notifier.preferences import Preferences, QuietHours

PAGE = Path(__file__).resolve().parents[2] / "docs" / "preferences.md"
BLOCKS = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
BY_DJANGO = """
import django
from django.conf import settings
database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(INSTALLED_APPS=["shop"], DATABASES={"default": database})
from shop.notifications import preferences
django.setup()
from django.db import connection
from shop.models import NotificationSettings
with connection.schema_editor() as editor:
    editor.create_model(NotificationSettings)
NotificationSettings.objects.create(user_id="anna", opted_out=["like"], quiet_from="22:00", quiet_until="07:00")
NotificationSettings.objects.create(user_id="bert")
print([preferences(user) for user in ("anna", "bert", "cleo")])
"""


def test_the_function() -> None:
    module: dict[str, Any] = {}
    exec(BLOCKS[0][1], module)
    assert module["preferences"]("7") is None
    night = QuietHours(time(22), time(7), "Europe/Berlin")
    assert module["preferences"]("42") == Preferences({"marketing", ("like", "webhook")}, night)


@pytest.mark.slow
def test_the_recipe_for_django(tmp_path: Path) -> None:
    for path, text in BLOCKS[1:]:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", BY_DJANGO], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    night = QuietHours(time(22), time(7), "UTC")
    assert done.stdout.strip() == repr([Preferences(frozenset({"like"}), night), Preferences(), None])
