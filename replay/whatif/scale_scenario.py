"""ScaleScenario: settings of the planner under which recorded demand is decided again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from core.errors import CallerError
from projections.scaling.scale_settings import LIBRARY_PREDICTORS, WORKERS_MAX, ScaleSettings
from replay.whatif.scenario import combinations, settings_text

PREDICTOR = "predictor"
PERIOD = "period_s"
"""The setting that a recording fixes."""


class ScaleScenario(msgspec.Struct, frozen=True):
    """Settings that lie over the recorded ones; without any the planner decides under the recorded ones."""

    settings: dict[str, Any]

    @staticmethod
    def parse(given: Mapping[str, Any]) -> ScaleScenario:
        """CallerError names the key, and what it may be."""
        if PERIOD in given:
            raise CallerError(f"{PERIOD}: the recorded periods have their length; leave it out")
        if given.get(PREDICTOR) in LIBRARY_PREDICTORS:
            raise CallerError(
                f"planner.{PREDICTOR}: {given[PREDICTOR]} answers beside a live planner alone: take constant, kalman "
                "or seasonal"
            )
        widest = {"min": 0, "max": WORKERS_MAX}  # a bound alone contradicts no default
        found = {key: ScaleSettings.parse({**widest, key: value}) for key, value in given.items()}
        return ScaleScenario({key: getattr(settings, key) for key, settings in found.items()})

    @property
    def label(self) -> str:
        """`ttft_ms 500 itl_ms 50`; how people tell scenarios apart."""
        return settings_text(self.settings) or "settings as recorded"

    def over(self, recorded: ScaleSettings) -> ScaleSettings:
        """The recorded settings with those of the scenario. CallerError if they contradict each other."""
        return ScaleSettings.parse({**asdict(recorded), **self.settings})


def scale_scenarios(
    base: Mapping[str, Any], tries: Sequence[Mapping[str, Any]], sweeps: Mapping[str, Sequence[Any]]
) -> list[ScaleScenario]:
    """The recorded settings first; then each of `tries`, and every combination of `sweeps`, over `base`. CallerError
    for what cannot be, and for more than `replay.whatif.scenario.SCENARIOS_MAX`."""
    found = [ScaleScenario({}), *map(ScaleScenario.parse, combinations(base, tries, sweeps))]
    return [each for at, each in enumerate(found) if each not in found[:at]]
