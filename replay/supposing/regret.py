"""Regret: what a recorded choice cost more than another one would have, in blocks and in estimated milliseconds."""

from __future__ import annotations

from heapq import heappush, heappushpop
from typing import NamedTuple

import msgspec

from core.events import RequestRouted
from projections.policy.cost import pending_beyond
from projections.policy.view import Candidate
from replay.supposing.fitted import Fitted


class Change(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One decision that falls otherwise in a scenario."""

    seq: int
    """Of its message in the routing stream."""
    request: str
    attempt: int
    time_ms: int
    recorded_worker: str
    new_worker: str
    """Empty if no worker was left."""
    regret_blocks: int
    """Blocks that the recorded choice had to compute and the new one would not have had to; negative if it would have
    had to compute more."""
    regret_ms: float
    """By how much sooner the first token would have come, estimated; negative for later."""
    prompt_tokens: int


class Regret(NamedTuple):
    """See `Change`; cached tokens are those that each choice was expected to have."""

    blocks: int
    ms: float
    cached_recorded: int
    cached_new: int


def regret(event: RequestRouted, recorded: Candidate, new: Candidate | None, fitted: Fitted) -> Regret:
    """Of one decision; `new` is None for a worker that was gone by then, which has nothing cached and nothing queued.

    Blocks that another request is computing there count as cached, as they do in a decision; one waits for them in
    the queue.
    """
    before = expected_blocks(recorded)
    after = expected_blocks(new) if new is not None else 0
    queued = recorded.prefill_tokens - (new.prefill_tokens if new is not None else 0)
    size = event.block_size
    return Regret(after - before, fitted.ms((after - before) * size, queued), before * size, after * size)


def expected_blocks(candidate: Candidate) -> int:
    """Blocks of the prompt that need not be computed there."""
    return candidate.overlap[-1] + pending_beyond(candidate)


class Worst:
    """The changes with the most regret, or with the least, a few of them."""

    def __init__(self, count: int, sign: int) -> None:
        """`sign` 1 keeps those that the record should regret, -1 those that the scenario would."""
        self._count = count
        self._sign = sign
        self._kept: list[tuple[float, int, int, Change]] = []

    def note(self, change: Change, number: int) -> None:
        """`number` counts decisions: of equal ones the earlier is kept."""
        value = self._sign * change.regret_ms
        blocks = self._sign * change.regret_blocks
        if self._count and (value, blocks) > (0, 0):
            entry = (value, blocks, -number, change)
            if len(self._kept) < self._count:
                heappush(self._kept, entry)
            else:
                heappushpop(self._kept, entry)

    @property
    def sorted(self) -> list[Change]:
        """The worst first."""
        return [entry[-1] for entry in sorted(self._kept, key=lambda entry: entry[:3], reverse=True)]
