"""Runs whose digests are written down: a faster simulation leaves every decision and every result as they are.

A change of the rules, of the engines or of the scheduler may change digests on purpose; the test that fails shows the
new ones.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from core.settings import RoutingSettings
from replay.simulate.options import Options
from replay.simulate.simulation import simulate
from tests.replay.simulate.families import ENGINE, families

COUNT = 150
BASE: dict[str, Any] = {"workers": 4, "engine": ENGINE}
RUNS: dict[str, dict[str, Any]] = {
    "time": {},
    "two that lag": {"replicas": 2, "lag_ms": 50},
    "workers that fail": {"replicas": 3, "lag_ms": 20, "failures_per_hour": 3000},
    "twenty workers": {"workers": 20, "replicas": 2, "lag_ms": 20},
    "prefill workers": {"prefill_workers": 2, "replicas": 2, "lag_ms": 20},
    "closed loop": {"concurrency": 12, "routing": RoutingSettings(temperature_m=500)},
    "kv": {"routing": RoutingSettings(policy="kv")},
    "host tier": {
        "engine": dataclasses.replace(ENGINE, capacity_blocks=24, host_blocks=400),
        "replicas": 2,
        "lag_ms": 20,
        "failures_per_hour": 1000,
    },
    "approximate": {"routing": RoutingSettings(policy="approximate")},
    "least loaded": {"routing": RoutingSettings(policy="least-loaded"), "replicas": 2, "lag_ms": 50},
}
DIGESTS: dict[str, str] = {
    "time": "77bd83b772858f54eaaaf192e8fc8676",
    "two that lag": "8243e075cbead25b64ff7588a8b7eec7",
    "workers that fail": "8fd201c3e6802add79406ac7c2c0ea14",
    "twenty workers": "b42c66d81ee018af4322bf92131a3dc5",
    "prefill workers": "1e2b60a5ee0e031d5b2c1180969aa5ee",
    "closed loop": "c73b455614446a4c9fef5555b064d1f5",
    "kv": "9476fdd6a22a8c47b02fbe19786e95d1",
    "host tier": "1ab73124b217a93654263323015d4182",
    "approximate": "299f537b50d12b226b4d42fa15903ca1",
    "least loaded": "d2afa34b31dafbb3f482f0adff5cf60c",
}


def digest(name: str) -> str:
    return simulate(Options(**{**BASE, **RUNS[name]}), families(COUNT)).digest


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_what_it_was(name: str) -> None:
    """Its decisions and results, to the bit."""
    assert digest(name) == DIGESTS[name]
