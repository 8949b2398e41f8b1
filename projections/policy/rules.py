"""Rules: the functions of which one version of the rules is made, and RULES: every version, all of them executable.

A decision is made, and made again, under the version that it records. The modules beside this one hold the newest
rules. A change of them that can give another decision needs a new version:

1. The functions as they were stay, in a module `rules_vN` or, if they are few lines, here; `RULES[N]` names them.
2. RULES gets the next version with the changed functions; DECIDE_VERSION names it, and PROGRAM_VERSION is raised.

`tests/golden/test_decisions.py` fails while that is not done.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from core.events.routing import DECIDE_VERSION
from core.ids import WorkerId
from core.settings import RoutingSettings
from projections.policy.candidates import CandidateSet, find_candidates
from projections.policy.cost import ScoredCandidate, excess_turnover, most_reuse, score
from projections.policy.policies import rank, rank_ties
from projections.policy.prefill_backlog import PrefillBacklog
from projections.policy.prefill_choice import Preferred, PrefillInputs, preferred_worker, prefill_reason
from projections.policy.view import Candidate, RouteRequest, View

Score = Callable[
    [list[Candidate], RouteRequest, RoutingSettings, Container[WorkerId], PrefillBacklog], list[ScoredCandidate]
]
Rank = Callable[[list[ScoredCandidate], RouteRequest, RoutingSettings, int, int], list[ScoredCandidate]]


def _excess_turnover(view: View, candidates: Iterable[Candidate]) -> Mapping[WorkerId, int]:
    return excess_turnover(candidates, view.state.loads.turnover)


def _no_turnover(_: View, __: Iterable[Candidate]) -> Mapping[WorkerId, int]:
    """Versions before 8 have no price for what a prompt pushes out."""
    return MappingProxyType({})


class Rules(NamedTuple):
    """The functions of one version: pure, without clock and I/O."""

    find_candidates: Callable[[View, RouteRequest, RoutingSettings, int], CandidateSet]
    score: Score
    rank: Rank
    reuse: Callable[[View], Mapping[WorkerId, int]]
    """Reuse of the talks that live on a worker, which policies that estimate times read."""
    reuse_max: Callable[[Iterable[Candidate], Mapping[WorkerId, int]], int]
    """The greatest reuse of these candidates, by which delays have their price."""
    preferred_worker: Callable[[View, RouteRequest, int], Preferred]
    prefill_reason: Callable[[PrefillInputs], str]
    by_columns: bool = True
    """True if the digest of a decision covers its candidates as columns (`projections.policy.candidate_columns`), False
    if as a list."""
    prices_first_active: bool = True
    """The first active tokens of a worker cost more among talks."""
    turnover: Callable[[View, Iterable[Candidate]], Mapping[WorkerId, int]] = _excess_turnover
    """The turnover of each candidate beyond that of others, which `time` reads."""


def _find_without_pools(view: View, request: RouteRequest, settings: RoutingSettings, now_ms: int) -> CandidateSet:
    """Versions 1 to 3 know no pools of blocks."""
    return find_candidates(view, request, settings, now_ms, pools=False)


def _no_reuse(_: View) -> Mapping[WorkerId, int]:
    """Version 1 has no price for the talks that live on a worker."""
    return MappingProxyType({})


def _no_delays(_: Iterable[Candidate], __: Mapping[WorkerId, int]) -> int:
    """Versions 1 and 2 have no price for delays among talks."""
    return 0


def _rank_by_hash(
    scored: list[ScoredCandidate], request: RouteRequest, settings: RoutingSettings, turn: int, seed: int
) -> list[ScoredCandidate]:
    """Version 1 decides between equal costs by the hash alone."""
    return rank_ties(scored, request, settings, turn, seed, by_overlap=False)


DELAYS_VERSION = 3
"""The first version with a price for delays among talks."""
POOLS_VERSION = 4
"""The first version that counts blocks in pools."""
FIRST_ACTIVE_VERSION = 7
"""The first version by which the first active tokens cost more among talks."""
TURNOVER_VERSION = 8
"""The first version by which prompts cost more where the cache was filled of late."""
_V8 = Rules(find_candidates, score, rank, View.reuse, most_reuse, preferred_worker, prefill_reason)
_V7 = _V8._replace(turnover=_no_turnover)
_V6 = _V7._replace(prices_first_active=False)
_V5 = _V6._replace(by_columns=False)
_V3 = _V5._replace(find_candidates=_find_without_pools)
_V2 = _V3._replace(reuse_max=_no_delays)
_V1 = _V2._replace(rank=_rank_by_hash, reuse=_no_reuse)
RULES: dict[int, Rules] = {1: _V1, 2: _V2, 3: _V3, 4: _V5, 5: _V5, 6: _V6, 7: _V7, 8: _V8}
"""By the version that a decision records (`RequestRouted.decide_version`). Versions 4 and 5 differ by requests for
adapters, which no record of version 4 has: the functions are the same. Versions 5 and 6 differ by the digest alone."""
assert max(RULES) == DECIDE_VERSION
