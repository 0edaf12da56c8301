"""What beat sends, and how often."""

from __future__ import annotations

from typing import Any

from notifier.wire import CONTROL, REPLAY_DEAD_LETTERS, SWEEP_UNSETTLED

PERIOD_S = 1.0
# A run that could not start within its period is not worth starting: the next one is there. So a stopped worker
# leaves no pile of them behind.
OPTIONS: dict[str, Any] = {"queue": CONTROL, "expires": PERIOD_S, "argsrepr": "()", "kwargsrepr": "{}"}

SCHEDULE: dict[str, dict[str, Any]] = {
    "notifier-replay": {"task": REPLAY_DEAD_LETTERS, "schedule": PERIOD_S, "options": OPTIONS},
    "notifier-sweep": {"task": SWEEP_UNSETTLED, "schedule": PERIOD_S, "options": OPTIONS},
}
