"""Values of the environment or a flag for "the workers": which groups of the file they go to.

Groups are mappings here, as the file has them: nothing is checked but that one group can be meant.
"""

from __future__ import annotations

from typing import Any

from core.errors import CallerError
from core.events.kv import DECODE, PREFILL

SHARED = ("model", "served_name", "engine")
"""What workers that compute for each other must have in common."""
COPIED = ("model", "served_name", "engine", "engine_args", "advertise")
"""What a prefill group takes over from the decode group that it is made for."""


def assign_to_workers(
    groups: list[dict[str, Any]], origins: dict[str, str], key: str, value: object, layer: str
) -> None:
    """The only decode group has the value, and what is shared the prefill groups, too. CallerError if there are
    several."""
    targets = [_only(groups, DECODE, layer)]
    if key in SHARED:
        targets += _numbers(groups, PREFILL)
    for number in targets:
        groups[number][key] = value
        origins[f"workers.{number}.{key}"] = layer


def assign_to_prefill(
    groups: list[dict[str, Any]], origins: dict[str, str], key: str, value: object, layer: str
) -> None:
    """The only prefill group has the value; one like the only decode group is made if there is none and it is to have
    workers. CallerError if several could be meant."""
    if not _numbers(groups, PREFILL):
        if value == 0:
            return
        _make_prefill(groups, origins, _only(groups, DECODE, layer), layer)
    number = _only(groups, PREFILL, layer)
    groups[number][key] = value
    origins[f"workers.{number}.{key}"] = layer


def _make_prefill(groups: list[dict[str, Any]], origins: dict[str, str], like: int, layer: str) -> None:
    made, number = groups[like], len(groups)
    groups.append({"role": PREFILL, **{key: made[key] for key in COPIED if key in made}})
    origins[f"workers.{number}.role"] = layer
    origins |= {
        f"workers.{number}.{key}": origins[f"workers.{like}.{key}"]
        for key in COPIED
        if f"workers.{like}.{key}" in origins
    }


def _only(groups: list[dict[str, Any]], role: str, layer: str) -> int:
    """The number of the one group of that role."""
    found = _numbers(groups, role)
    if len(found) != 1:
        raise CallerError(f"{layer}: the file has {len(found)} {role} groups; say there which one is meant")
    return found[0]


def _numbers(groups: list[dict[str, Any]], role: str) -> list[int]:
    return [number for number, group in enumerate(groups) if group.get("role", DECODE) == role]
