"""SpeedModel: the speed of a model's workers, learned from the ends of requests.

1. Each end says how long the engine computed the prompt, from its first pass to the first token, and how long the
   answer took from there on. Both are lines: prefill over the tokens that were computed, a decode step over the tokens
   that the requests of the same worker hold.
2. Samples are kept in classes by tokens, the newest few of each. A line goes through the classes' medians, with the
   median of their slopes (Theil and Sen).
3. What is learned is an event, so it is computed once. A replay reads it.

Passes that several prompts share, and prompts in between the steps of an answer, are in the samples: under load the
engine seems slower than it is.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from core.events import Event, RequestFinished, RequestRouted, UnknownEvent
from core.events.request_stages import US_PER_TENTH, RequestStages
from core.events.routing import CACHED_UNKNOWN
from core.events.scale import LEARNED, CapacityLearned
from projections.policy.prefill_time import PrefillTimeSample, median_sample, theil_sen
from projections.scaling.request_demand import OPEN_MAX, SERVED

SAMPLES_KEPT = 31
"""Samples of one class: older ones go."""
CLASS_MIN = 3
"""A class with fewer samples has no say."""
SAMPLES_MIN = 16
"""With fewer samples of either line nothing is learned yet."""
OUTPUT_MIN = 4
"""Shorter answers say nothing about a step."""


class EngineBounds(NamedTuple):
    """Sizes of one worker's engine, as its registration and settings have them."""

    room_tokens: int
    slots: int
    """0 if unknown."""
    pass_tokens: int
    devices: int = 1


class _Line:
    """Samples of a duration over tokens. Memory is bounded by the classes, some 20."""

    def __init__(self, classes_min: int) -> None:
        """A line needs so many classes; one class alone gives one through the origin."""
        self._classes_min = classes_min
        self._classes: dict[int, deque[PrefillTimeSample]] = {}
        self._noted = 0

    def note(self, tokens: int, us: int) -> None:
        self._classes.setdefault(tokens.bit_length(), deque(maxlen=SAMPLES_KEPT)).append(PrefillTimeSample(tokens, us))
        self._noted += 1

    def through(self, first: int, last: int) -> tuple[int, int] | None:
        """The line's values at both places; None while too little is known. Without a line that rises, the median of
        all samples stands at both."""
        if self._noted < SAMPLES_MIN:
            return None
        kept = [list(samples) for samples in self._classes.values()]
        middles = sorted(median_sample(samples) for samples in kept if len(samples) >= CLASS_MIN)
        line = theil_sen(middles) if len(middles) >= self._classes_min else None
        if line is None:
            us = median_sample([sample for samples in kept for sample in samples]).us
            return us, us
        return line.us(first), line.us(last)


class SpeedModel:
    """See the module's text. Follows the requests of one model; memory is bounded by OPEN_MAX requests."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._prefill, self._decode = _Line(1), _Line(2)
        self._open: dict[tuple[str, int], tuple[str, int]] = {}
        """By request and attempt: its worker and the tokens of its prompt, in the order of the decisions."""
        self._held: dict[str, int] = {}
        """By worker: prompt tokens of its open requests."""

    def __repr__(self) -> str:
        return f"<SpeedModel of {self._model}, {len(self._open)} requests open>"

    def apply(self, event: Event | UnknownEvent) -> None:
        """The event counts. O(1)."""
        match event:
            case RequestRouted() if event.model == self._model:
                self._begin((event.request, event.attempt), event.worker, event.prompt_tokens)
            case RequestFinished():
                self._finish(event)

    def learned(self, bounds: EngineBounds, at_ms: int) -> CapacityLearned | None:
        """The capacity of one worker; None while too few requests have ended. O(samples)."""
        room = max(2, bounds.room_tokens)
        prefill, decode = self._prefill.through(1, bounds.pass_tokens), self._decode.through(1, room)
        if prefill is None or decode is None:
            return None
        return CapacityLearned(
            at_ms=at_ms,
            pass_tokens=bounds.pass_tokens,
            prefill_tokens=(1, bounds.pass_tokens),
            prefill_us=prefill,
            decode_tokens=(1, room),
            decode_us=decode,
            room_tokens=room,
            startup_ms=0,
            starts=0,
            hits=(),
            slots=bounds.slots,
            devices=bounds.devices,
            origin=LEARNED,
        )

    def _begin(self, key: tuple[str, int], worker: str, tokens: int) -> None:
        if len(self._open) >= OPEN_MAX:
            self._end(next(iter(self._open)))
        self._open[key] = worker, tokens
        self._held[worker] = self._held.get(worker, 0) + tokens

    def _end(self, key: tuple[str, int]) -> int:
        """The request is open no more; returns the tokens that its worker's requests held with it."""
        found = self._open.pop(key, None)
        if found is None:
            return 0
        worker, tokens = found
        held = self._held[worker]
        if held > tokens:
            self._held[worker] = held - tokens
        else:
            del self._held[worker]
        return held

    def _finish(self, event: RequestFinished) -> None:
        held = self._end((event.request, event.attempt))
        stages = RequestStages.of(event.stages)
        if not held or stages is None or event.outcome not in SERVED:
            return
        if event.cached_tokens != CACHED_UNKNOWN and stages.behind >= 0 and stages.prefill > 0 and not stages.remote:
            self._prefill.note(max(1, event.prompt_tokens - event.cached_tokens), stages.prefill * US_PER_TENTH)
        if event.output_tokens >= OUTPUT_MIN and stages.decode > 0:
            steps = event.output_tokens - 1
            self._decode.note(held + event.output_tokens // 2, stages.decode * US_PER_TENTH // steps)
