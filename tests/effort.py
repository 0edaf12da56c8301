"""How hard Hypothesis tries: HYPOTHESIS_PROFILE.

few, by default, and ci, with which tests/properties/test_fuzz_*.py take about a minute, try the same examples every
time: a change that passed once passes again. fresh looks for new ones, some minutes long, and is for a change to a
parser. What it finds becomes an @example, or a member of ODD in tests/properties/anything.py.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
for name, examples in (("few", 100), ("ci", 700), ("fresh", 5_000)):
    settings.register_profile(
        name,
        max_examples=examples,
        derandomize=name != "fresh",
        deadline=None,
        print_blob=True,
        suppress_health_check=SLOW,
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "few"))
