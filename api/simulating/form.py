"""What a simulation found, as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from replay.simulate.report import SimulationReport
from replay.simulate.setup import Setup
from replay.simulate.sweep import SweepPoint


def run_json(setup: Setup, found: SimulationReport) -> str:
    """Stable snake_case keys: those of `SimulationReport`, and `simulated` for what was asked."""
    return _text({**msgspec.to_builtins(found), "simulated": _simulated(setup)})


def sweep_json(setup: Setup, found: Sequence[SweepPoint]) -> str:
    """The same for each of `points`, with what was set for it under `given`; `simulated` is what all have in common."""
    rows = [{"given": point.given, **msgspec.to_builtins(point.report)} for point in found]
    return _text({"points": rows, "simulated": _simulated(setup)})


def _simulated(setup: Setup) -> Mapping[str, Any]:
    """Enough to ask for the same again; of the trace only its name."""
    options = setup.options
    return {
        "trace": setup.trace.path.name,
        "format": setup.trace.format,
        "first": setup.trace.first,
        "model": setup.trace.model,
        **{key: value for key, value in setup.pace._asdict().items() if key != "seed"},
        **{
            field.name: getattr(options, field.name)
            for field in dataclasses.fields(options)
            if field.name not in {"engine", "routing"}
        },
        "engine": dataclasses.asdict(options.engine),
        "routing": options.routing.to_mapping(),
    }


def _text(value: Mapping[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()
