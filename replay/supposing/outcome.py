"""Outcome: what one scenario would have made of the recorded history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt

import msgspec

from projections.policy.view import Candidate
from replay.supposing.fitted import Fitted
from replay.supposing.regret import Change
from replay.supposing.scenario import Scenario

MILLION = 1_000_000
EVEN = (0.0, 1.0)


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How evenly workers were loaded; 0 and 1 are perfectly even."""

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
    """What engines said of it, of those whose first token came."""
    regret_blocks: int
    """Over all decisions, those included that stay where they were and find another queue or other pending blocks."""
    regret_ms: float
    ttft_recorded_ms: float
    """Mean time to first token of those whose first token came."""
    ttft_new_ms: float
    """The same less the mean regret."""
    requests_recorded: dict[str, int]
    """By worker's id: of every life of those that answer requests for these models."""
    requests_new: dict[str, int]
    spread_recorded: Spread
    spread_new: Spread
    names: dict[str, str]
    """Worker's id to name."""
    policies: dict[str, int]
    """Recorded decisions by the policy that made them."""
    fitted: dict[str, Fitted]
    """By model."""
    worst: list[Change]
    """Where the record has most to regret, first."""
    losses: list[Change]
    """Where the scenario would have."""
    changes: list[Change]
    """All of them, in the order of the log."""
    digest: str
    """16 hex digits of every new choice and its regret; equal for equal recordings and scenarios, anywhere."""

    @property
    def better(self) -> bool:
        """Whether first tokens would have come sooner, or, if times cannot be told, more would have been cached."""
        return self.regret_ms > 0 if self.timed else self.regret_blocks > 0

    @property
    def timed(self) -> bool:
        """Whether differences in time can be estimated."""
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

    def spread(self, requests: Iterable[int]) -> Spread:
        """With the requests of every worker that could have had some."""
        found = evenness(list(requests)) or EVEN
        count = self._count * MILLION
        return Spread(
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
