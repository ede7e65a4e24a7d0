"""Hypothesis without its clock: on a busy machine a slow example is no failure."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("apportion", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("apportion")
