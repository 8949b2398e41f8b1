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
    "time": "2a2684fc26703454928e1d64c5277802",
    "two that lag": "dacaf5133ca5646deb7c25363b78d54a",
    "workers that fail": "1b4ac2d184bfff88f6fa971c11b00ef2",
    "twenty workers": "a8a15cfab739b4b6da9845fb6c55e6e6",
    "prefill workers": "ff4df3f79e6bc52c745672b142287836",
    "closed loop": "512b332e054e22c3615fc8b9adc4771f",
    "kv": "ce74ff841457607ee232a4712c7ee09d",
    "host tier": "aa3c57e54713102afc42f1901c100839",
    "approximate": "e8a3c189ee0b5bdb7cd2fb5d6ca564e8",
    "least loaded": "149040910022d80eededf42f9320b89e",
}


def digest(name: str) -> str:
    return simulate(Options(**{**BASE, **RUNS[name]}), families(COUNT)).digest


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_what_it_was(name: str) -> None:
    """Its decisions and results, to the bit."""
    assert digest(name) == DIGESTS[name]
