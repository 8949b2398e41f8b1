"""Scenario: what should have been different when the recorded history is decided again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import msgspec

from core.errors import CallerError
from core.settings import RoutingSettings

DELAY_MS_MAX = 3_600_000
SCENARIOS_MAX = 200
"""Scenarios of one question; each is a decision more per recorded one."""
OWN_KEYS = frozenset({"settings", "without", "delay_ms"})
NO_LEDGER = "follow_load is gone: loads are always as recorded here, and --closed-loop lets them follow the choices"

QUEUEING = ("active_max", "queue_max", "queue_wait_max_ms", "hold_max_ms")
"""Settings of the router's queue, by which a closed loop goes."""
UNREAD = (
    "candidates_recorded_max",
    "remote_prefill_min_tokens",
    "prefill_queue_max",
    "prefill_wait_max_ms",
    *QUEUEING,
)
"""Settings that no decision rests on: deciding again cannot tell what they change."""

USUAL_SCENARIOS: tuple[Mapping[str, Any], ...] = (
    *({"policy": "kv", "prefill_weight": weight} for weight in (0.5, 1, 2, 4, 8)),
    *({"policy": "time", "own_weight": weight} for weight in (1, 3.2, 6)),
    {"policy": "kv", "temperature": 0.5},
    {"policy": "kv", "tie_margin": 4},
    {"policy": "least-loaded"},
    {"policy": "round-robin"},
    {"policy": "random"},
)
"""Scenarios of a question without any."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to the recorded settings, workers or knowledge, under which decisions are made again."""

    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    """As `contrail settings set` takes them: `prefill_weight`, `policy`, …"""
    without: tuple[str, ...] = ()
    """Workers, by name or id, that are no candidates."""
    delay_ms: int = 0
    """A decision sees only what stood in the log for so long before it, and its replica's own events."""

    @staticmethod
    def parse(given: Mapping[str, Any]) -> Scenario:
        """`settings`, `without` and `delay_ms`; every other key is a setting. CallerError names what cannot be."""
        if "follow_load" in given:
            raise CallerError(NO_LEDGER)
        settings = {**_mapping(given.get("settings", {})), **{k: v for k, v in given.items() if k not in OWN_KEYS}}
        RoutingSettings.parse(settings)
        return Scenario(
            settings=settings,
            without=_names(given.get("without", ())),
            delay_ms=_delay(given.get("delay_ms", 0)),
        )

    @property
    def unread(self) -> list[str]:
        """Of the settings, those that no decision rests on."""
        return [name for name in self.settings if name in UNREAD]

    @property
    def is_unread(self) -> bool:
        """The scenario consists of such settings alone."""
        return bool(self.settings) and len(self.unread) == len(self.settings) and not (self.without or self.delay_ms)

    @property
    def label(self) -> str:
        """`policy round-robin, without decode-1, log 50 ms later`; how people tell scenarios apart."""
        parts = [self.set_text] if self.settings else []
        parts += [f"without {', '.join(self.without)}"] if self.without else []
        parts += [f"log {self.delay_ms} ms later"] if self.delay_ms else []
        return ", ".join(parts) or "as recorded"

    @property
    def set_text(self) -> str:
        """The settings as `contrail settings set` takes them: `prefill_weight 2 policy kv`."""
        return settings_text(self.settings)


def scenarios(
    base: Mapping[str, Any], tries: Sequence[Mapping[str, Any]], sweeps: Mapping[str, Sequence[Any]]
) -> list[Scenario]:
    """Each of `tries`, and every combination of `sweeps`, over `base`; the base alone without either. CallerError for
    what cannot be, and for more than SCENARIOS_MAX."""
    found = [Scenario.parse(each) for each in combinations(base, tries, sweeps)]
    return [each for at, each in enumerate(found) if each not in found[:at]]


def combinations(
    base: Mapping[str, Any], tries: Sequence[Mapping[str, Any]], sweeps: Mapping[str, Sequence[Any]]
) -> list[Mapping[str, Any]]:
    """The settings of each scenario, as `scenarios` has them. CallerError for more than SCENARIOS_MAX."""
    asked: list[Mapping[str, Any]] = list(tries)
    if sweeps:
        asked += [dict(zip(sweeps, values, strict=True)) for values in product(*sweeps.values())]
    if len(asked) > SCENARIOS_MAX:
        raise CallerError(f"{len(asked)} scenarios are too many: ask for {SCENARIOS_MAX} at most")
    return [{**base, **each} for each in asked or [{}]]


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise CallerError(f"settings: {value!r} is no object of settings and values")
    return dict(value)


def _names(value: object) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name for name in names):
        raise CallerError(f"without: {value!r} is no list of names or ids of workers")
    return tuple(names)


def _delay(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= DELAY_MS_MAX:
        raise CallerError(f"delay_ms: {value!r} is no number of milliseconds between 0 and {DELAY_MS_MAX}")
    return round(value)


def settings_text(settings: Mapping[str, Any]) -> str:
    """`prefill_weight 2 policy kv`."""
    return " ".join(f"{key} {_text(value)}" for key, value in settings.items())


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
