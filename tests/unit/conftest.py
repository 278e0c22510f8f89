"""Hypothesis on a slow machine: examples are judged by what they show, not by how long they take."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("slow machines", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slow machines")
