"""The environment variables that Contrail reads, by name: so that one that is written wrongly does not go unseen."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from api.config_load import SETTINGS

PREFIX = "CONTRAIL_"
OTHERS = ("CONTRAIL_DATA", "CONTRAIL_KEY_FILE", "CONTRAIL_JOURNAL", "CONTRAIL_TRACES")
"""Options of commands that are no part of the deployment, and of measurements."""
VARIABLES = (*(setting.variable for setting in SETTINGS), *OTHERS)


def unknown_variables(names: Iterable[str]) -> list[str]:
    """A sentence for each of these variables that looks like ours and is not, with the one that is nearest."""
    unknown = sorted(name for name in names if name.startswith(PREFIX) and name not in VARIABLES)
    return [f"{name} is no variable of Contrail's and changes nothing{_meant(name)}" for name in unknown]


def _meant(name: str) -> str:
    near = get_close_matches(name.removeprefix(PREFIX), [known.removeprefix(PREFIX) for known in VARIABLES], n=1)
    return f"; is {PREFIX}{near[0]} meant?" if near else "; docs/operating.md lists them."
