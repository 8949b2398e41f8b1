"""ScaleSettings: the bounds within which a fleet sizes itself, and the one way to parse them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core.errors import CallerError, did_you_mean

CONSTANT, KALMAN, SEASONAL, ARIMA, PROPHET = PREDICTORS = ("constant", "kalman", "seasonal", "arima", "prophet")
LIBRARY_PREDICTORS = (ARIMA, PROPHET)
"""Those of other libraries, which run in a process of their own. Where that has no answer, `seasonal` stands in."""
JUDGE = "judge"
ON, OFF = "on", "off"
SLO = "slo"
SLO_KEYS = ("ttft_ms", "itl_ms", "attainment")
"""Keys of the bounds of service, which stand below `slo` in a file."""
PRIORITY = "priority"
PREFILL_WORKERS = "prefill"
"""Key of the settings that prefill workers have of their own …"""
PREFILL_KEYS = ("min", "max", "down_window_s", "startup_s")
"""… and these settings."""
WORKERS_MAX = 4096
DAY_S = 86_400
LIMITS: Mapping[str, tuple[int, int]] = {
    "ttft_ms": (1, 3_600_000),
    "itl_ms": (1, 60_000),
    "min": (0, WORKERS_MAX),
    "max": (1, WORKERS_MAX),
    "devices_max": (0, 1_000_000),
    "period_s": (1, 60),
    "down_window_s": (0, 86_400),
    "startup_s": (0, 86_400),
    "zero_after_s": (0, 7 * DAY_S),
    "season_s": (600, 7 * DAY_S),
    "quantile": (50, 100),
    PRIORITY: (0, 1000),
}
"""Least and greatest value of each whole number."""


class ScaleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One revision of the settings; equal values mean equal decisions."""

    ttft_ms: int = 1000
    """Bound of the time from a request's arrival to its first token …"""
    itl_ms: int = 50
    """… and of its mean time per further token."""
    attainment: float = 95.0
    """Percent of requests that are to be within both bounds; hundredths count."""
    min: int = 1
    """Fewest workers; 0 lets an idle fleet end."""
    max: int = 16
    devices_max: int = 0
    """Devices of all workers together; 0 for no such bound."""
    period_s: int = 5
    """Time between two decisions."""
    down_window_s: int = 120
    """The fleet shrinks to the most workers that were required in this time."""
    startup_s: int = 60
    """Time that a worker takes to start, until starts were observed."""
    zero_after_s: int = 600
    """With `min: 0`, the fleet ends after so long without an arrival."""
    predictor: str = SEASONAL
    season_s: int = DAY_S
    """Period after which demand repeats itself, for the predictor `seasonal`."""
    quantile: int = 95
    """The forecast lies above so many percent of its own recent errors."""
    priority: int = 0
    """Of several models that share devices, one with a higher priority gets its workers first."""

    judge: str = OFF
    """ON if simulations beside the planner judge the numbers of workers that it requires."""

    @property
    def attainment_bp(self) -> int:
        """The attainment in hundredths of a percent."""
        return round(self.attainment * 100)

    @property
    def least(self) -> int:
        """Fewest workers that a hand leaves: one, unless the fleet may end at zero."""
        return min(1, self.min)

    def workers_max(self, devices: int) -> int:
        """Most workers, of so many devices each; at least `min`."""
        return max(self.min, min(self.max, self.devices_max // devices if self.devices_max else self.max))

    def to_mapping(self) -> dict[str, Any]:
        """The settings as a file has them. A priority of 0 is left out, as it is where one model is sized, and so is
        a judge that is off."""
        found: dict[str, Any] = msgspec.structs.asdict(self)
        if not self.priority:
            del found[PRIORITY]
        if self.judge == OFF:
            del found[JUDGE]
        return {SLO: {key: found.pop(key) for key in SLO_KEYS}, **found}

    @staticmethod
    def parse(given: Mapping[str, Any]) -> ScaleSettings:
        """The defaults with the given settings instead; bounds of service stand below `slo`, or beside it. CallerError
        names the key and what it may be."""
        slo = given.get(SLO, {})
        if not isinstance(slo, Mapping):
            raise CallerError(f"planner.slo: {slo!r} has no keys; give it {', '.join(SLO_KEYS)}")
        known = ScaleSettings.__struct_fields__
        values: dict[str, Any] = {}
        for key, value in [*((key, value) for key, value in given.items() if key != SLO), *slo.items()]:
            if key not in known:
                there = did_you_mean(str(key), known) or f"; there are {', '.join(sorted(known))}"
                raise CallerError(f"planner.{key}: no such setting{there}")
            values[key] = _parsed(key, value)
        found = ScaleSettings(**values)
        if found.min > found.max:
            raise CallerError(f"planner.min: {found.min} is above planner.max, {found.max}")
        return found


def _parsed(key: str, value: object) -> str | int | float:
    if key == "predictor":
        if value not in PREDICTORS:
            near = did_you_mean(str(value), PREDICTORS)
            raise CallerError(f"planner.predictor: {value!r} is none of {', '.join(PREDICTORS)}{near}")
        return str(value)
    if key == JUDGE:
        found = {True: ON, False: OFF}.get(value, value) if isinstance(value, bool) else value
        if found not in {ON, OFF}:
            raise CallerError(f"planner.{JUDGE}: {value!r} is neither {ON} nor {OFF}")
        return str(found)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CallerError(f"planner.{key}: {value!r} is not a number")
    if key == "attainment":
        if not 0 < value <= 100:
            raise CallerError(f"planner.attainment: {value} is no percentage above 0 and at most 100")
        return float(value)
    least, most = LIMITS[key]
    if value // 1 != value or not least <= value <= most:  # true for inf and nan, too
        raise CallerError(f"planner.{key}: {value} is no whole number from {least} to {most}")
    return int(value)


def prefill_settings(settings: ScaleSettings, own: Mapping[str, Any]) -> ScaleSettings:
    """The settings of a model's prefill workers: those of its decode workers, and their own over them. CallerError
    names a key that cannot be of their own."""
    for key in own:
        if key not in PREFILL_KEYS:
            near = did_you_mean(str(key), PREFILL_KEYS) or f"; there are {', '.join(PREFILL_KEYS)}"
            raise CallerError(f"planner.prefill.{key}: prefill workers have no such setting of their own{near}")
    return ScaleSettings.parse({**settings.to_mapping(), **own})
