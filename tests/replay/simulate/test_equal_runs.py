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
    "time": "63de3fc33ea9a14b4ae179280b8c506d",
    "two that lag": "0788e6e35a7b8b8e1035ff066450e5cc",
    "workers that fail": "bdb97bd9d378e3d815aa24bbf9f489b0",
    "twenty workers": "bbfa5e926abcbd2e9cfa08713919dd1d",
    "prefill workers": "392338dc71c57daae0d067cad3d13099",
    "closed loop": "630beda2db42c3ad77ad837e7b7a1b82",
    "kv": "90ec271ad01827f9e0f7b1eac9a4e4ae",
    "host tier": "eba18b9593a1a3034cd8497400f110dc",
    "approximate": "56ccb580b38f9a723054225b4d05a892",
    "least loaded": "4fa8619dff2242315e5999f9e44f3175",
}


def digest(name: str) -> str:
    return simulate(Options(**{**BASE, **RUNS[name]}), families(COUNT)).digest


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_what_it_was(name: str) -> None:
    """Its decisions and results, to the bit."""
    assert digest(name) == DIGESTS[name]
