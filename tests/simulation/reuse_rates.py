"""Reuse rates that a world draws for its workers: its prompts are so small that each measured rate is 0."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from actors.worker.load_reporter import ReuseRate
from core.codec import decode_message
from core.events import RequestRouted
from core.events.routing import REUSE
from core.subjects import ROUTING
from projections.folds.load_fold import REUSE_UNIT

if TYPE_CHECKING:
    from tests.simulation.world import World

CHANGES_EVERY_MS = 500
RATE_FULL = 15 * REUSE_UNIT
"""From this rate on a worker counts as full of talks."""
DOUBLINGS_ABOVE_MAX = 16


class DrawnReuseRate(ReuseRate):
    """A rate that changes every CHANGES_EVERY_MS, whatever the worker computed."""

    def __init__(self, random_: random.Random) -> None:
        super().__init__()
        self._random = random_
        self._changed_ms: int | None = None

    def note(self, now_ms: int, prompt_tokens: int, cached_tokens: int) -> int:
        del prompt_tokens, cached_tokens
        if self._changed_ms is None or now_ms - self._changed_ms >= CHANGES_EVERY_MS:
            self._changed_ms, self.tokens_per_s = now_ms, drawn_rate(self._random)
        return self.tokens_per_s


def drawn_rate(random_: random.Random) -> int:
    """0, or a rate below the first doubling, of some doublings, around RATE_FULL, or above."""
    match random_.randrange(5):
        case 0:
            return 0
        case 1:
            return random_.randrange(1, REUSE_UNIT)
        case 2:
            return random_.randrange(REUSE_UNIT, RATE_FULL)
        case 3:
            return RATE_FULL + random_.randrange(-REUSE_UNIT, REUSE_UNIT)
        case _:
            return random_.randrange(RATE_FULL, RATE_FULL << random_.randint(1, DOUBLINGS_ABOVE_MAX))


def count_reuse(world: World) -> None:
    """The witness saw the decisions that recorded a reuse, and those with the reuse of a candidate that they lack."""
    for record in world.stream(ROUTING).from_seq(1):
        if record.payload in world.witness.made:
            continue
        for event in decode_message(record.payload).events:
            if isinstance(event, RequestRouted) and (reuse := event.columns.get(REUSE)) is not None:
                world.witness.saw("reuse recorded", event.request)
                if len(reuse) > len(event.columns["cost"]):
                    world.witness.saw("reuse of another recorded", event.request)
