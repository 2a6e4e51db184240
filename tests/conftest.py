"""How many random examples each property is tried with: few while writing, many where CI=true.

Health checks of the machine's speed and of luck are no reason to fail.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
settings.register_profile("quick", deadline=None, max_examples=50, suppress_health_check=CHECKS)
settings.register_profile("ci", deadline=None, max_examples=1000, suppress_health_check=CHECKS)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "quick")
