"""Policies on the command line of a measurement: `kv`, or with settings, `time,own_weight=3,hold_max_ms=5000`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from api.cli.options import pairs
from core.errors import CallerError
from core.settings import RoutingSettings


def policies(named: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Each one's settings, as a deployment file has them. The program ends with a sentence if one cannot be."""
    try:
        found = {each: _given(each) for each in named}
        for given in found.values():
            RoutingSettings.parse(given)
    except CallerError as error:
        sys.exit(f"--policies: {error}")
    return found


def _given(policy: str) -> dict[str, Any]:
    name, _, settings = policy.partition(",")
    return {"policy": name, **(pairs([settings]) if settings else {})}
