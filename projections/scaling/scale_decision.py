"""The decision on the size of a fleet: a pure function of the scale stream, the fleet's counts and a forecast.

1. The demand is the forecast's rate, the present burst if it is higher, and the requests that wait.
2. A number of workers has a prediction (`projections.scaling.queue_model`). The fewest that reach the goal are
   required; few numbers are tried. Where a fleet without any wait attains less than the goal, the goal is a little
   below that, and the fleet reaches the first goal by eased bounds (`ScaleRules.eases_bounds`).
3. The target rises at once, unless the present fleet misses the goal by little (`ScaleRules.hold_bp`). It falls to the
   most workers that were required over `down_window_s`, at a demand that is somewhat higher (`raised_m`): so noise
   turns no worker off and on. Where the forecast lies above the expected demand, the goal is a little lower
   (`goal_above_bp`).
4. Without the sizes of ended requests, or before the window is full, the target never falls.
5. Where more requests attained the bounds than was asked, the goal sinks a little, until they are spent.
6. Where simulations judge, the fewest workers that both the queue and the simulations find good enough are required.
7. A fleet that may be at zero ends when no request came for a while, and begins with one worker or more when one comes.
8. Where prefill workers are sized beside decode workers, each fleet is decided alone, prefill workers by a queue of
   their own (`projections.scaling.prefill_queue_model`). A request misses the bounds if either fleet lets it miss them,
   so each may have half of the misses that the settings allow.

More demand never wants fewer workers, since each prediction falls with the rate, and the goal never does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import NamedTuple

from msgspec import UNSET

from core.events.kv import PREFILL
from core.events.scale import (
    CapacityLearned,
    DemandCell,
    DemandRolled,
    HitRate,
    ScaleCandidate,
    ScaleDecided,
    ScaleForecast,
    ScaleJudgement,
)
from projections.scaling.prefill_queue_model import PrefillQueueModel
from projections.scaling.queue_model import ALL_BP, MILLI, QueueModel
from projections.scaling.scale_rules import RULES, ScaleRules
from projections.scaling.scale_settings import OFF, ScaleSettings

GOAL, CEILING, MAX, MIN, DOWN_WINDOW, BURST, IDLE, NO_HISTORY, FROM_ZERO, BUDGET, JUDGED = BOUNDS = (
    "goal",
    "ceiling",
    "max",
    "min",
    "down_window",
    "burst",
    "idle",
    "no_history",
    "from_zero",
    "budget",
    "judged",
)
"""Reason of a target. In order: the fewest workers that reach the goal; the same, where no fleet reaches the goal of
the settings; more were required than may be; fewer were required; more were required a moment ago; a burst requires
them; there is no demand; too little is known; requests came while the fleet had no worker; devices that the models
share are with others of them (`projections.scaling.fleet_decision`); simulations found fewer workers too few
(`fewest_judged`)."""
CEILING_GAIN_BP = 50
"""Attainment that the last workers would add below the ceiling, and that is not bought."""
SPEND_S = 900
"""Requests within the bounds beyond those that were sought let the goal sink: they are spent in so many seconds …"""
SPENT_MOST_BP = 200
"""… and the goal sinks by so much at most."""
DOWN_MARGIN_BP = 500
"""A smaller fleet must bear so much more than the present demand …"""
DOWN_NOISE_S = 60
"""… and one standard deviation of the arrivals in so many seconds."""
REGRET_MARGIN_BP = 1_000
"""The same margin, in the time after a fall that had to be taken back. A load just between two numbers of workers would
turn the fleet around without end."""
BURST_S = 10
BURST_BEFORE_S = 60
"""A burst is measured against the time before it …"""
BURST_FACTOR_BP = 15_000
"""… it is so much higher …"""
BURST_DEVIATIONS = 4
"""… and by so many standard deviations of a count."""
HIT_TOKENS_MIN = 500_000
"""A hit rate over fewer prompt tokens is not used."""
JUDGED_MS = 120_000
"""An answer of the judge counts for decisions up to so long after the one whose demand was simulated …"""
JUDGED_FALL_BP = 500
"""… and while the demand is below the simulated one by at most so much."""
JUDGED_ERROR_BP = 100
"""A number of workers is good enough if its simulation misses the goal by at most this: a share of 95 % among 768
requests deviates by 80 hundredths of a percent."""
JUDGED_GAIN_BP = 50
"""It is also good enough if one worker more would add less than this: no fleet makes up for a long prompt."""


class FleetCounts(NamedTuple):
    """Workers by their state."""

    ready: int
    starting: int = 0
    """Ordered, and may still come in time."""
    overdue: int = 0
    """Ordered, and should have come long ago."""
    draining: int = 0


class RequiredWorkers(NamedTuple):
    """Result of an earlier decision."""

    at_ms: int
    workers: int


class ScaleInputs(NamedTuple):
    """Everything that a decision rests on."""

    at_ms: int
    demand: Sequence[DemandRolled]
    """The last periods, oldest first: those of `KEPT_S`."""
    cells: Sequence[DemandCell]
    """Sizes of the requests that ended lately: each class once, in the order of the classes."""
    arrived_ms: int
    """The end of the last period with an arrival; that of the first period before any."""
    periods: int
    """All periods so far."""
    surplus_bp: int
    """Requests within the bounds of service beyond those that the settings ask for, in hundredths of a percent of a
    request; older ones count less (`ScaleFold`)."""
    capacity: CapacityLearned
    settings: ScaleSettings
    revision: int
    fleet: FleetCounts
    forecast: ScaleForecast
    required: Sequence[RequiredWorkers]
    """Of the decisions within the window for shrinking, oldest first."""
    regretted: int
    """Workers below which the fleet fell within REGRET_S (`ScaleFold`), to rise again; 0 for none."""
    is_window_full: bool
    """The window for shrinking has decisions from its start on."""
    target: int
    """Of the last decision; the workers that there are, before the first one."""
    version: int
    """Of the rules."""
    answer: ScaleJudgement | None = None
    """The judge's answer or absence since the decision before, which this one records …"""
    judged: ScaleJudgement | None = None
    """… and the last answer that an earlier one recorded. None for none."""


def decide_scale(inputs: ScaleInputs) -> ScaleDecided:
    """The decision. Some milliseconds: at most three searches, each of some predictions of `QueueModel`."""
    settings, fleet, demand, rules = inputs.settings, inputs.fleet, inputs.demand, RULES[inputs.version]
    most = settings.workers_max(inputs.capacity.devices)
    model = queue_of(inputs)
    burst_m = burst_rate_m(demand)
    waiting = demand[-1].waiting if demand else 0
    waiting_m = waiting * MILLI // max(1, inputs.forecast.horizon_s)
    rate_m = max(inputs.forecast.upper_m, burst_m) + waiting_m
    expected_m = max(inputs.forecast.rate_m, burst_m) + waiting_m if rules.relaxation else rate_m
    candidates: Sequence[ScaleCandidate] = ()
    ceiling_bp, bound, judged = 0, GOAL, 0
    sought_bp = goal_above_bp(_attainment_bp(inputs), inputs.forecast, inputs.version)
    if rules.eases_bounds:
        sought_bp = max(1, sought_bp)  # less than nothing would be within reach of a ceiling of 0
    goal = Goal(sought_bp, inputs.surplus_bp if rules.spends_surplus else 0)
    if demand and not rate_m:
        required, bound = min(1, inputs.target) if rules.rests_at_zero else 1, IDLE
    elif not model.is_known:
        required, bound = max(inputs.target, 1 if rate_m else 0), NO_HISTORY
    else:
        hits = HitRates(inputs.capacity.hits, inputs.cells, fleet.ready)
        ceiling_bp = model.ceiling_bp(hits.now_bp, hits.now_bp)
        if ceiling_bp - CEILING_GAIN_BP < goal.most_bp:
            goal, bound = _below_ceiling(goal, ceiling_bp, rules), CEILING
        search = _Search(model, hits, goal, rules, most, inputs.target, rate_m, expected_m)
        required, candidates = search.fewest(), search.candidates
        if bound == GOAL and burst_m > inputs.forecast.upper_m:
            bound = BURST
        judged = fewest_judged(_judgement(inputs), inputs.at_ms, rate_m, goal.at_bp(rate_m))
        if judged > required:
            required, bound = judged, JUDGED
    if is_idle := _is_idle(inputs):
        required, bound = 0, IDLE
    ends = is_idle and rules.rests_at_zero
    kept = required
    if model.is_known and rate_m and required < inputs.target and not ends:
        kept = max(judged, search.fewest_with_margin(inputs.regretted))
    highest = 0 if ends else max([kept, *(each.workers for each in inputs.required)])
    target, bound = _target(inputs, required, highest, bound)
    return ScaleDecided(
        at_ms=inputs.at_ms,
        periods=inputs.periods,
        rate_m=rate_over_m(demand, BURST_BEFORE_S),
        burst_m=burst_m,
        forecast=inputs.forecast,
        ready=fleet.ready,
        starting=fleet.starting,
        overdue=fleet.overdue,
        draining=fleet.draining,
        candidates=tuple(candidates),
        ceiling_bp=ceiling_bp,
        goal_bp=goal.at_bp(rate_m),
        required=kept,
        target=target,
        bound=bound,
        revision=inputs.revision,
        version=inputs.version,
        judged=UNSET if inputs.answer is None else inputs.answer,
    )


def _below_ceiling(goal: Goal, ceiling_bp: int, rules: ScaleRules) -> Goal:
    """The goal where no fleet attains more than the ceiling."""
    below_bp = ceiling_bp - CEILING_GAIN_BP
    if not rules.eases_bounds:
        return goal._replace(most_bp=below_bp)
    return goal._replace(most_bp=max(0, below_bp), eased_bp=goal.most_bp)


def _judgement(inputs: ScaleInputs) -> ScaleJudgement | None:
    """The newest answer of the judge, if the settings ask for one."""
    if inputs.settings.judge == OFF:
        return None
    return inputs.judged if inputs.answer is None or inputs.answer.absent else inputs.answer


def fewest_judged(judgement: ScaleJudgement | None, at_ms: int, rate_m: int, goal_bp: int) -> int:
    """The fewest workers that are good enough for that goal; one of the simulated numbers, and the most of these if
    none is. 0 without an answer that counts at that time and demand. It never falls with the demand, if the goal does
    not: the answer counts from some demand on."""
    if judgement is None or judgement.absent or at_ms - judgement.asked_ms > JUDGED_MS:
        return 0
    if rate_m < judgement.rate_m * (ALL_BP - JUDGED_FALL_BP) // ALL_BP:
        return 0
    found = judgement.workers
    for place, each in enumerate(found):
        gain_bp = found[place + 1].attainment_bp - each.attainment_bp if place + 1 < len(found) else JUDGED_GAIN_BP
        if each.attainment_bp >= goal_bp - JUDGED_ERROR_BP or gain_bp < JUDGED_GAIN_BP:
            return each.workers
    return found[-1].workers if found else 0


def queue_of(inputs: ScaleInputs) -> QueueModel | PrefillQueueModel:
    """The queue that predicts the service of workers of the capacity's role."""
    it, rules = inputs, RULES[inputs.version]
    if it.capacity.role == PREFILL:
        return PrefillQueueModel(it.demand, it.cells, it.capacity, it.settings)
    return QueueModel(
        it.demand, it.cells, it.capacity, it.settings, rules.lanes, goes_round_whole=rules.goes_round_whole
    )


def _attainment_bp(inputs: ScaleInputs) -> int:
    """The attainment of the settings; of one of two roles that are sized together, with half of the misses."""
    whole_bp = inputs.settings.attainment_bp
    has_roles = bool(inputs.demand) and inputs.demand[-1].prefill_demand is not UNSET
    return whole_bp + (ALL_BP - whole_bp) // 2 if has_roles else whole_bp


def goal_above_bp(attainment_bp: int, forecast: ScaleForecast, version: int) -> int:
    """The attainment that is sought at the forecast's upper rate, where this one is sought at the expected demand
    (`ScaleRules.relaxation`). At most twice as many requests may miss the bounds there."""
    above_bp = (forecast.upper_m - forecast.rate_m) * ALL_BP // max(1, forecast.rate_m)
    relaxed_bp = min(ALL_BP, RULES[version].relaxation * above_bp)
    return attainment_bp - (ALL_BP - attainment_bp) * relaxed_bp // ALL_BP


def _target(inputs: ScaleInputs, required: int, highest: int, bound: str) -> tuple[int, str]:
    """The number of workers, within the bounds of the settings, and its reason. A smaller fleet has the `highest` one
    that was required in the window."""
    settings, target = inputs.settings, required
    most = settings.workers_max(inputs.capacity.devices)
    if target < inputs.target:
        target = min(inputs.target, highest) if inputs.is_window_full else inputs.target
        bound = DOWN_WINDOW if target > required else bound
    if target > most:
        target, bound = most, MAX
    if RULES[inputs.version].rests_at_zero and target and not inputs.target and bound != MAX:
        bound = FROM_ZERO
    if target < settings.min:
        target, bound = settings.min, MIN
    return target, bound


class Goal(NamedTuple):
    """The attainment that is sought."""

    most_bp: int
    surplus_bp: int = 0
    eased_bp: int = 0
    """The attainment that is sought by eased bounds, too; 0 for none."""

    def at_bp(self, rate_m: int) -> int:
        """The goal at that demand: below the most, so that the surplus is spent in SPEND_S, and by SPENT_MOST_BP at
        most. It never falls with the demand: the same surplus is more for each request of a quiet time."""
        spent_bp = max(0, self.surplus_bp) * MILLI // (SPEND_S * max(1, rate_m))
        return self.most_bp - min(SPENT_MOST_BP, spent_bp)

    def is_reached(self, found: ScaleCandidate, slack_bp: int) -> bool:
        """The prediction misses it by at most the slack."""
        eased_bp = found.attainment_bp if found.eased_bp is None else found.eased_bp
        return found.attainment_bp >= self.at_bp(found.rate_m) - slack_bp and eased_bp >= self.eased_bp - slack_bp


class _Search:
    """Finds the fewest workers that reach the goal, by few predictions.

    The present number is tried first, then the one beside it, and then halves of the rest. Each number that is tried
    depends on earlier answers alone, and more demand turns answers only from yes to no. So more demand never ends at
    fewer workers, also where predictions do not rise with the number of workers.
    """

    def __init__(
        self,
        model: QueueModel | PrefillQueueModel,
        hits: HitRates,
        goal: Goal,
        rules: ScaleRules,
        most: int,
        present: int,
        rate_m: int,
        expected_m: int,
    ) -> None:
        """The demand is `rate_m`, and at most `most` workers may be. `present` is the last target, which stays while it
        misses the goal by at most `hold_bp`. A smaller fleet must bear a little more than `expected_m`, too."""
        self._model, self._hits, self._goal, self._rules = model, hits, goal, rules
        self._most, self._present, self._rate_m, self._expected_m = most, present, rate_m, expected_m
        self.candidates: list[ScaleCandidate] = []
        """The predictions so far."""
        self._missed: set[int] = set()
        """Numbers of workers that miss the goal at some rate, and so at each higher one."""
        self._fewest = 0
        """Result of `fewest`."""

    def fewest(self) -> int:
        """The fewest workers; one more than may be if none of these reaches the goal."""
        self._fewest = self._fewest_at(self._rate_m)
        return self._fewest

    def fewest_with_margin(self, regretted: int) -> int:
        """The same at a somewhat higher demand, and at most the present number. Below the `regretted` number the demand
        is higher still. Comes after `fewest`."""
        raised = raised_m(self._expected_m)
        kept = self._fewest_at(raised) if raised > self._rate_m else self._fewest
        if kept >= regretted:
            return kept
        return min(regretted, self._fewest_at(raised_m(self._rate_m, REGRET_MARGIN_BP)))

    def _fewest_at(self, rate_m: int) -> int:
        """Two predictions, and one more for each halving of the workers that may be."""
        begin = min(max(1, self._present), self._most)
        if self._reaches(begin, rate_m):
            least, most, tried = 0, begin, begin - 1
        else:
            least, most, tried = begin, self._most + 1, begin + 1
        while most - least > 1:
            if self._reaches(tried, rate_m):
                most = tried
            else:
                least = tried
            tried = (least + most) // 2
        return most

    def _reaches(self, workers: int, rate_m: int) -> bool:
        if workers in self._missed:
            return False
        if workers == self._present and rate_m > self._rate_m:
            return True  # the margin is asked of smaller fleets
        hits, goal = self._hits, self._goal
        found = self._model.predict(workers, rate_m, hits.of(workers), hits.now_bp, is_eased=goal.eased_bp > 0)
        self.candidates.append(found)
        reaches = goal.is_reached(found, self._rules.hold_bp * (workers == self._present))
        if self._rules.eases_bounds and not (found.eased_bp or found.attainment_bp):
            reaches = False  # it has no time or no room: also a goal of almost nothing is beyond it
        if not reaches:
            self._missed.add(workers)
        return reaches


class HitRates:
    """Expected hit rates by number of workers: the present one, shifted by the differences that were learned."""

    def __init__(self, learned: Sequence[HitRate], cells: Sequence[DemandCell], ready: int) -> None:
        self._rising = rising([each for each in learned if each.prompt_tokens >= HIT_TOKENS_MIN])
        prompt, uncached = sum(cell.prompt_tokens for cell in cells), sum(cell.uncached_tokens for cell in cells)
        self.now_bp = ALL_BP - uncached * ALL_BP // prompt if prompt else 0
        """Of the requests that ended lately."""
        self._ready = ready

    def of(self, workers: int) -> int:
        """The hit rate with so many workers, never falling with their number."""
        return min(ALL_BP, max(0, self.now_bp + self._learned(workers) - self._learned(self._ready)))

    def _learned(self, workers: int) -> int:
        below = [share for count, share in self._rising if count <= workers]
        return below[-1] if below else (self._rising[0][1] if self._rising else 0)


def rising(learned: Sequence[HitRate]) -> list[tuple[int, int]]:
    """Numbers of workers with shares that never fall: neighbours that do are taken together, by their tokens."""
    blocks: list[list[int]] = []  # first number, tokens, tokens times share
    for each in sorted(learned, key=lambda each: each.workers):
        blocks.append([each.workers, each.prompt_tokens, each.prompt_tokens * each.share_bp])
        while len(blocks) > 1 and blocks[-2][2] * blocks[-1][1] > blocks[-1][2] * blocks[-2][1]:
            _, tokens, weighed = blocks.pop()
            blocks[-1][1] += tokens
            blocks[-1][2] += weighed
    return [(workers, weighed // tokens) for workers, tokens, weighed in blocks]


def raised_m(rate_m: int, margin_bp: int = DOWN_MARGIN_BP) -> int:
    """The demand that a smaller fleet must bear: more than the present one, and more so where counts are small."""
    noise_m = isqrt(rate_m * MILLI // DOWN_NOISE_S)
    return rate_m * (ALL_BP + margin_bp) // ALL_BP + noise_m


def rate_over_m(demand: Sequence[DemandRolled], seconds: int, before_s: int = 0) -> int:
    """Arrivals a second in thousandths, over so many seconds that end `before_s` before the last period's end."""
    if not demand:
        return 0
    end_ms = demand[-1].at_ms - before_s * MILLI
    found = [each for each in demand if end_ms - seconds * MILLI < each.at_ms <= end_ms]
    length_s = sum(each.period_s for each in found)
    return sum(each.arrivals for each in found) * MILLI // length_s if length_s else 0


def burst_rate_m(demand: Sequence[DemandRolled]) -> int:
    """The rate over the last BURST_S if it is a burst; else 0."""
    now_m, before_m = rate_over_m(demand, BURST_S), rate_over_m(demand, BURST_BEFORE_S, BURST_S)
    is_high = now_m * ALL_BP >= before_m * BURST_FACTOR_BP
    # by square roots of counts, in hundredths: they deviate by a half, also where counts are small
    come, expected = (isqrt(rate_m * BURST_S * ALL_BP // MILLI) for rate_m in (now_m, before_m))
    return now_m if is_high and come - expected > BURST_DEVIATIONS * 50 else 0


def _is_idle(inputs: ScaleInputs) -> bool:
    """No request came for so long that the fleet may end. A fleet with a least number of workers never does."""
    settings, demand = inputs.settings, inputs.demand
    if settings.min or not demand or demand[-1].waiting or demand[-1].running:
        return False
    return demand[-1].at_ms - inputs.arrived_ms >= settings.zero_after_s * MILLI
