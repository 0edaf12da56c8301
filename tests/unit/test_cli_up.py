"""What `notifier up` does to a directory that somebody may have named."""

from __future__ import annotations

from pathlib import Path

from notifier.cli.up import _emptied


def test_what_an_earlier_run_counted_goes_and_nothing_else(tmp_path: Path) -> None:
    """NOTIFIER_DATA_DIR may be a directory with a `metrics` of its own in it."""
    place = _emptied(tmp_path / "data" / "metrics")
    for name in ("counter_41.db", "gauge_livesum_41.db", "histogram_41.db", "lock", "app.db", "models.py"):
        (place / name).touch()
    assert {file.name for file in _emptied(place).iterdir()} == {"lock", "app.db", "models.py"}
