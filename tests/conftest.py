"""How many random examples each property is tried with: few while writing, many where CI=true."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("quick", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") == "true" else "quick")
