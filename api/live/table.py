"""The settings as a table, and who uses which revision."""

from __future__ import annotations

from typing import Any

import msgspec

from api.live.meanings import MEANINGS
from api.live.stored import Stored
from api.live.usage import InUse
from api.text_table import text_table
from core.settings import RoutingSettings


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, as `contrail settings --json` shows it."""

    key: str
    value: Any
    """What decisions go by."""
    source: str
    """`live`, `configured` or `default`."""
    configured: Any
    default: Any
    meaning: str


def settings_of(stored: Stored, configured: RoutingSettings) -> list[Setting]:
    """Every setting, in the order of their fields."""
    defaults, there = RoutingSettings().to_mapping(), configured.to_mapping()
    return [
        Setting(
            key=key,
            value=stored.values.get(key, there[key]),
            source="live" if key in stored.values else "configured" if there[key] != default else "default",
            configured=there[key],
            default=default,
            meaning=MEANINGS.get(key, ""),
        )
        for key, default in defaults.items()
    ]


def settings_text(settings: list[Setting], stored: Stored, use: InUse) -> str:
    """The table, then the revision and who uses it."""
    rows = [(it.key, _shown(it.value), it.source, _shown(it.configured), it.meaning) for it in settings]
    lines = text_table(("setting", "value", "from", "configured", "meaning"), rows, "<><><")
    return "\n".join([*lines, "", *usage_lines(stored.revision, use)])


def usage_lines(revision: int, use: InUse) -> list[str]:
    """The revision and, by replica, whether it is used."""
    says = f"revision {revision}" if revision else "nothing is set live: everything is as configured (revision 0)"
    if not use.replicas:
        return [f"{says}; no replica is registered"]
    if use.everywhere:
        return [f"{says}; all {len(use.replicas)} replicas use it"]
    behind = [
        f"  {it.name} ({it.id}): {it.why or f'uses revision {it.settings_revision}'}"
        for it in use.replicas
        if not it.uses
    ]
    return [f"{says}; {len(behind)} of {len(use.replicas)} replicas do not use it:", *behind]


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
