"""Ways to break the code under test, and how soon the simulation must find out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.simulation.options import REWRITES
from tests.simulation.run import Failed, simulate

SEEDS_MAX = 60
"""A broken law that takes longer to be found is as good as none."""
KEPT = dict.fromkeys((*REWRITES, "tamper"), 0.0)
"""History is kept, and nobody is tampered with."""
Patch = pytest.MonkeyPatch


class Broken(NamedTuple):
    """One way to break the code, and what a failure must say."""

    breaks: Callable[[Patch], None]
    says: str
    changes: dict[str, Any]

    def is_found_out(self, patch: Patch) -> None:
        """It breaks a law within a few seeds, and the failure says how to see it again."""
        self.breaks(patch)
        for seed in range(SEEDS_MAX):
            try:
                simulate(seed, self.changes)
            except Failed as error:
                assert self.says in str(error)
                assert f"python -m tests.simulation --seed {seed} --set " in str(error)
                return
        raise AssertionError(f"not found within {SEEDS_MAX} seeds")


def replaces(owner: type | object, name: str, new: Callable[[Any], Any]) -> Callable[[Patch], None]:
    """The attribute is what `new` makes of the one that was there."""
    return lambda patch: patch.setattr(owner, name, new(getattr(owner, name)))


async def does_nothing(*_: object, **__: object) -> None:
    """What a check is replaced by."""
