"""Trial: one scenario, made decision by decision beside the record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec
import xxhash

from core.events import RequestRouted
from core.ids import RequestId, WorkerId
from core.settings import RoutingSettings
from projections.folds.in_flight import InFlight
from projections.folds.routing_fold import in_flight
from projections.policy.cost import ESTIMATING_POLICIES, MILLI, pending_beyond
from projections.policy.decide import Decision, decide
from projections.policy.view import Candidate
from replay.playback import Situation
from replay.supposing.fitted import Fitted
from replay.supposing.lives import Life
from replay.supposing.outcome import Evenness, blocks_of, evenness
from replay.supposing.regret import Change, Regret, Worst, regret
from replay.supposing.scenario import Scenario
from replay.supposing.supposed import Entry, Ledger, Sight, Supposed

_encode = msgspec.msgpack.Encoder().encode
MICRO = 1000
"""Of a millisecond: sums of regret are whole microseconds, so that they are the same anywhere."""


UNFITTED = Fitted()


class Judged(NamedTuple):
    """One recorded decision that can be judged."""

    number: int
    situation: Situation
    life: Life
    sight: Sight
    """What stood in the log."""
    recorded: Candidate
    """The recorded choice in it."""
    even: tuple[float, float] | None
    """How evenly active blocks lay."""


class Trial:
    """See the module's text."""

    def __init__(
        self,
        scenario: Scenario,
        fitted: Mapping[str, Fitted],
        without: Collection[WorkerId],
        worst: int,
        *,
        keeps: bool,
    ) -> None:
        """`fitted` is by model; `without` are the lives of the workers that the scenario is without; `worst` and
        `losses` hold so many at most; `keeps` says whether every change is kept."""
        self.scenario = scenario
        self.without = without
        self.changes: list[Change] = []
        self.changed = self.refused = self.astray = self.unlearned = 0
        self.cached_tokens = self.tokens = 0
        """Expected on the new choices, and the prompt tokens of those that were not refused."""
        self.regret_blocks = self.regret_us = 0
        self.requests: Counter[str] = Counter()
        self.worst, self.losses = Worst(worst, 1), Worst(worst, -1)
        self.recorded_even, self.new_even = Evenness(), Evenness()
        self.fitted = fitted
        self._keeps = keeps
        self._ledger = Ledger()
        self._settings: dict[RoutingSettings, RoutingSettings] = {}
        self._fewer: Counter[tuple[str, str]] = Counter()
        """Decisions that were not made, by replica and model: it takes its turns without them."""
        self._digest = xxhash.xxh3_64()

    def __repr__(self) -> str:
        return f"<Trial {self.scenario.label!r}: {self.changed} changed>"

    @property
    def digest(self) -> str:
        """Of all that was decided so far."""
        return self._digest.hexdigest()

    def take(self, judged: Judged, seen: Sight) -> None:
        """The decision is made as the scenario has it, on what is seen in it, and weighed by what stood in the log."""
        situation, event = judged.situation, judged.situation.event
        rows = self._rows(judged.sight, situation)
        seen_rows = rows if seen is judged.sight else self._rows(seen, situation)
        decision = self._decide(situation, seen, seen_rows)
        found = Regret(0, 0.0, 0, 0)
        if decision.worker is None:
            self.refused += 1
            self._fewer[situation.replica, event.model] += 1
        else:
            new = next((row for row in rows if row.worker == decision.worker), None)
            self.astray += new is None
            found = regret(event, judged.recorded, new, self.fitted.get(event.model, UNFITTED))
            self.requests[decision.worker] += 1
            self.tokens += event.prompt_tokens
        self.cached_tokens += found.cached_new
        self.regret_blocks += found.blocks
        self.regret_us += round(found.ms * MICRO)
        even = evenness(blocks_of(rows, event.model))
        if judged.even is not None and even is not None:
            self.recorded_even.note(judged.even)
            self.new_even.note(even)
        self._book(judged, decision)
        self._note(judged, decision.worker or WorkerId(""), found)

    def forget(self, lowest: int) -> None:
        """No view that comes shows less of the routing stream than this."""
        self._ledger.forget(lowest)

    def _rows(self, sight: Sight, situation: Situation) -> list[Candidate]:
        rows = self._ledger.rows(sight, situation.request.prompt)
        if self.without:
            rows = [row for row in rows if row.worker not in self.without]
        return rows

    def _decide(self, situation: Situation, seen: Sight, rows: list[Candidate]) -> Decision:
        event = situation.event
        settings = self._settings.get(situation.settings)
        if settings is None:
            given = {**situation.settings.to_mapping(), **self.scenario.settings}
            settings = self._settings[situation.settings] = RoutingSettings.parse(given)
        estimates = settings.policy in ESTIMATING_POLICIES and not settings.prefill_us_per_token_m
        self.unlearned += estimates and event.policy not in ESTIMATING_POLICIES
        view = Supposed.of(seen, self._ledger, rows, self._fewer[situation.replica, event.model])
        return decide(view, situation.request, settings, event.now_ms, event.seed)

    def _book(self, judged: Judged, decision: Decision) -> None:
        """The ledger has the attempt if it weighs otherwise than recorded."""
        if not self.scenario.follow_load:
            return
        event = judged.situation.event
        recorded = msgspec.structs.replace(in_flight(event), hashes=b"")
        supposed = _in_flight(decision, event, judged.situation.request.prompt.blocks_to_hold)
        if supposed != recorded:
            key = (RequestId(event.request), event.attempt)
            self._ledger.note(Entry.of(key, judged.life, recorded, supposed))

    def _note(self, judged: Judged, worker: WorkerId, found: Regret) -> None:
        situation, event = judged.situation, judged.situation.event
        self._digest.update(_encode((situation.seq, event.request, worker, found.blocks, round(found.ms * MICRO))))
        if worker == event.worker:
            return
        self.changed += 1
        change = Change(
            seq=situation.seq,
            request=event.request,
            attempt=event.attempt,
            time_ms=situation.time_ms,
            recorded_worker=event.worker,
            new_worker=worker,
            regret_blocks=found.blocks,
            regret_ms=round(found.ms * MICRO) / MICRO,
            prompt_tokens=event.prompt_tokens,
        )
        if self._keeps:
            self.changes.append(change)
        self.worst.note(change, judged.number)
        self.losses.note(change, judged.number)


def _in_flight(decision: Decision, event: RequestRouted, blocks_to_hold: int) -> InFlight | None:
    """What the attempt weighs where it was put, as its record would say."""
    if decision.worker is None:
        return None
    blocks = blocks_to_hold - pending_beyond(decision.ranked[0].candidate)
    begins_us = event.now_ms * MILLI + decision.backlog.outstanding_us(decision.worker)
    tokens = event.prompt_tokens - decision.predicted_cached_tokens
    return InFlight(decision.worker, blocks, tokens, begins_us=begins_us)
