"""How hard Hypothesis tries: HYPOTHESIS_PROFILE=ci takes about a minute for tests/properties/test_fuzz_*.py.

By default the examples are few, and the same every time.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("few", max_examples=40, derandomize=True, deadline=None, suppress_health_check=SLOW)
settings.register_profile(
    "ci", max_examples=700, derandomize=False, deadline=None, print_blob=True, suppress_health_check=SLOW
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "few"))
