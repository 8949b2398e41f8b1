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
    "time": "9abe4bf19eca27b442d8b7d50bb50a15",
    "two that lag": "2a44a28c34d77b5ef71e64ee9380cac3",
    "workers that fail": "a11e74fcc410c1feb01076ba85d2ffb3",
    "twenty workers": "29de773f059ce9ed4e8217c724975d93",
    "prefill workers": "677c531971ec7416b20dc261117734d7",
    "closed loop": "47c8753af3c271cd6d4c849e99198911",
    "kv": "51dd19cce70a256e32d79eaadddf1d1c",
    "host tier": "c5cddaa3ba2ce6cde5052328dc4b99d7",
    "approximate": "1bd45feaab4a21139a3f233abb346a87",
    "least loaded": "9a6b05516e6d6dca2b943485b97f9d34",
}


def digest(name: str) -> str:
    return simulate(Options(**{**BASE, **RUNS[name]}), families(COUNT)).digest


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_what_it_was(name: str) -> None:
    """Its decisions and results, to the bit."""
    assert digest(name) == DIGESTS[name]
