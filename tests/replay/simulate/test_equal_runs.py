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
    "time": "fff0734cc3f7962bcda315c5b9f0f50c",
    "two that lag": "e9e2c39fcd9be3ab08a07f54ed7de4d9",
    "workers that fail": "8210756587aca701d5f19b8fc5477d46",
    "twenty workers": "3a6d87c199e1edc6ff12c2f6a8c8f927",
    "prefill workers": "48830aa6f614ec9f82841f646103a355",
    "closed loop": "6d211b3c35318ab5c44b427b08b235ab",
    "kv": "9d32ee4f174385c28fc498eb1ed607c6",
    "host tier": "13fbdedcc63cd0f64ea8605bb13139b1",
    "approximate": "dfcacc9e593d705087144e2d6856e953",
    "least loaded": "5d07c02e493c134d17cbaf1367f70636",
}


def digest(name: str) -> str:
    return simulate(Options(**{**BASE, **RUNS[name]}), families(COUNT)).digest


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_what_it_was(name: str) -> None:
    """Its decisions and results, to the bit."""
    assert digest(name) == DIGESTS[name]
