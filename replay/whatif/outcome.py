"""Outcome: what one scenario would have made of the recorded history.

The regret of a recorded choice is what it cost more than another one would have, in blocks and in estimated
milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappush, heappushpop
from math import sqrt
from typing import NamedTuple

import msgspec

from core.events import RequestRouted
from projections.policy.cost import pending_beyond
from projections.policy.view import Candidate
from replay.whatif.first_token_fit import FirstTokenFit
from replay.whatif.scenario import Scenario


class DecisionChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    """See `DecisionChange`; cached tokens are those that the new choice was expected to have."""

    blocks: int
    ms: float
    cached_new: int


def regret(event: RequestRouted, recorded: Candidate, new: Candidate | None, fitted: FirstTokenFit) -> Regret:
    """Of one decision; `new` is None for a worker that was gone by then, which has nothing cached and nothing queued.

    Blocks that another request is computing there count as cached, as they do in a decision; one waits for them in
    the queue.
    """
    before = expected_blocks(recorded)
    after = expected_blocks(new) if new is not None else 0
    queued = recorded.prefill_tokens - (new.prefill_tokens if new is not None else 0)
    size = event.block_size
    return Regret(after - before, fitted.ms((after - before) * size + queued), after * size)


def expected_blocks(candidate: Candidate) -> int:
    """Blocks of the prompt that need not be computed there."""
    return candidate.overlap[-1] + pending_beyond(candidate)


class WorstChanges:
    """The changes with the most regret, or with the least, a few of them."""

    def __init__(self, count: int, sign: int) -> None:
        """`sign` 1 keeps those that the record should regret, -1 those that the scenario would."""
        self._count = count
        self._sign = sign
        self._kept: list[tuple[float, int, int, DecisionChange]] = []

    def note(self, change: DecisionChange, number: int) -> None:
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
    def sorted(self) -> list[DecisionChange]:
        """The worst first."""
        return [entry[-1] for entry in sorted(self._kept, key=lambda entry: entry[:3], reverse=True)]


MILLION = 1_000_000
EVEN = (0.0, 1.0)


class LoadBalance(msgspec.Struct, frozen=True, kw_only=True):
    """Evenness of the load over workers; 0 and 1 are perfectly even."""

    requests_cv: float
    """Coefficient of variation of the requests per worker, over all; all lives of a name are one worker."""
    requests_max_over_mean: float
    blocks_cv: float
    """The same of active blocks, at each decision, in the mean."""
    blocks_max_over_mean: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides are of the same decisions: those that could be judged. Blocks and tokens are what was expected when
    it was decided, on both sides; milliseconds are estimates by `fitted`."""

    scenario: Scenario
    decisions: int
    changed: int
    """Of them, those that fall otherwise."""
    refused: int
    """Of those, the ones for which no worker was left."""
    astray: int
    """Of those, the ones that went to a worker that was gone already."""
    unlearned: int
    """Of the decisions, those made by the default of how long a prefill lasts, though their replica may have learned
    it: what was recorded under a policy that estimates nothing does not say."""
    left_out: dict[str, int]
    """Decisions that could not be judged, by what the recording lacks; and those that their workers declined: such a
    request was decided on again."""
    rejected: int
    """Requests that were refused when it was recorded: they are not decided again, their prompts are not recorded."""
    first_ms: int
    last_ms: int
    """When the first and the last decision were recorded, since 1970."""
    prompt_tokens: int
    hit_rate_recorded: float
    """Expected cached tokens per prompt token."""
    hit_rate_new: float
    hit_rate_real: float
    """Cached tokens per prompt token by the engines' reports, of requests with a first token whose engine said it."""
    regret_blocks: int
    """Over all decisions, those included that stay where they were and find another queue or other pending blocks."""
    regret_ms: float
    ttft_recorded_ms: float
    """Mean time to first token, of requests with one."""
    ttft_new_ms: float
    """The same less the mean regret."""
    requests_recorded: dict[str, int]
    """By worker's id: of every life of those that answer requests for these models."""
    requests_new: dict[str, int]
    spread_recorded: LoadBalance
    spread_new: LoadBalance
    names: dict[str, str]
    """Worker's id to name."""
    policies: dict[str, int]
    """Recorded decisions by the policy that made them."""
    fitted: dict[str, FirstTokenFit]
    """By model."""
    worst: list[DecisionChange]
    """The changes that the record has most to regret, worst first."""
    losses: list[DecisionChange]
    """The changes that the scenario would have most to regret."""
    changes: list[DecisionChange]
    """All of them, in the order of the log."""
    first_tokens: list[tuple[int, float]]
    """The times to first token as recorded and, estimated, in the scenario, of requests with one, in the order of the
    log; empty unless changes are kept."""
    digest: str
    """16 hex digits of every new choice and its regret; equal for equal recordings and scenarios, anywhere."""

    @property
    def better(self) -> bool:
        """First tokens would have come sooner, or, without estimates of time, more would have been cached."""
        return self.regret_ms > 0 if self.timed else self.regret_blocks > 0

    @property
    def timed(self) -> bool:
        """Differences in time can be estimated."""
        return any(fitted.usable for fitted in self.fitted.values())


def ranked(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The best first: fewest refused, then most milliseconds won, then most blocks; equal ones as given."""
    return sorted(outcomes, key=lambda each: (each.refused, -each.regret_ms, -each.regret_blocks))


class Evenness:
    """Sums up how evenly active blocks lie at each decision; in millionths, so that the order cannot matter."""

    def __init__(self) -> None:
        self._count = self._variation = self._peak = 0

    def note(self, even: tuple[float, float]) -> None:
        """One decision's `evenness`."""
        self._count += 1
        self._variation += round(even[0] * MILLION)
        self._peak += round(even[1] * MILLION)

    def spread(self, requests: Iterable[int]) -> LoadBalance:
        """With the requests of every worker that could have had some."""
        found = evenness(list(requests)) or EVEN
        count = self._count * MILLION
        return LoadBalance(
            requests_cv=found[0],
            requests_max_over_mean=found[1],
            blocks_cv=self._variation / count if count else EVEN[0],
            blocks_max_over_mean=self._peak / count if count else EVEN[1],
        )


def by_name(requests: Mapping[str, int], names: Mapping[str, str]) -> Counter[str]:
    """The sums of all lives of each worker."""
    found: Counter[str] = Counter()
    for worker, count in requests.items():
        found[names.get(worker, worker)] += count
    return found


def blocks_of(rows: Iterable[Candidate], model: str) -> list[int]:
    """Active blocks of each worker of the model."""
    return [row.active_blocks for row in rows if row.model == model]


def evenness(values: Sequence[int]) -> tuple[float, float] | None:
    """Coefficient of variation, and maximum over mean; None of nothing."""
    total, count = sum(values), len(values)
    if total <= 0:
        return None
    squares = count * sum(value * value for value in values) - total * total
    return sqrt(max(0, squares)) / total, max(values) * count / total
