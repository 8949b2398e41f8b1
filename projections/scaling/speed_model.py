"""SpeedModel: the speed of a model's workers, learned from the ends of requests.

1. Each end says how long the engine computed the prompt, from its first pass to the first token, and how long the
   answer took from there on. Both are lines: prefill over the tokens that were computed, a decode step over the tokens
   that the requests of the same worker hold.
2. Samples are kept in classes by tokens, the newest few of each. A line goes through the classes' medians, with the
   median of their slopes (Theil and Sen).
3. What is learned is an event, so it is computed once. A replay reads it.
4. A measured profile stands until the takeover. From TAKEOVER_SAMPLES samples on, each duration of the profile is
   multiplied by the ratio of samples to profile. A class has the ratio of its median. Between two classes the ratio
   lies on their line; beyond the first and the last it stays. Prefill and decode are taken over each by itself.

Prompts that the worker computed in between the steps of an answer are taken out of its sample, by the durations that
are known of prompts. Passes that several prompts share stay in: under load prompts seem slower than they are.

Prompts of prefill workers teach the speed of these (`projections.scaling.prefill_speed_model`). Where decode workers
compute too few themselves, these stand for theirs, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from core.events import Event, RequestFinished, RequestPrefilled, RequestRouted, UnknownEvent
from core.events.request_stages import US_PER_TENTH, RequestStages
from core.events.routing import CACHED_UNKNOWN
from core.events.scale import LEARNED, CapacityLearned
from projections.policy.prefill_time import PrefillTime, PrefillTimeSample, median_sample, theil_sen
from projections.scaling.measured_profile import rising
from projections.scaling.queue_model import ALL_BP, DecodeSteps, interpolate
from projections.scaling.request_demand import OPEN_MAX, PULLED, SERVED, US_PER_MS

SAMPLES_KEPT = 31
"""Samples of one class: older ones go."""
CLASS_MIN = 3
"""A class with fewer samples has no say."""
SAMPLES_MIN = 16
"""With fewer samples of either line nothing is learned yet."""
TAKEOVER_SAMPLES = 256
"""With fewer samples a line takes nothing over from a measured profile: some minutes of requests, which had cold caches
and a fleet of another size."""
REFIT_EVERY = 16
"""Samples of prompts between two looks at their line, by which decode samples are corrected."""
OUTPUT_MIN = 4
"""Shorter answers say nothing about a step."""


class EngineBounds(NamedTuple):
    """Sizes of one worker's engine, as its registration and settings have them."""

    room_tokens: int
    slots: int
    """0 if unknown."""
    pass_tokens: int
    devices: int = 1


class Ratios(NamedTuple):
    """Ratios of durations by tokens, in hundredths of a percent."""

    tokens: list[int]
    """Rising."""
    ratios_bp: list[int]

    def over(self, tokens: int, us: int) -> int:
        """The duration, multiplied by the ratio at these tokens."""
        place = min(max(tokens, self.tokens[0]), self.tokens[-1])
        return max(1, us * interpolate(place, self.tokens, self.ratios_bp) // ALL_BP)


class _Open(NamedTuple):
    """A request that a worker serves."""

    worker: str
    tokens: int
    """Of its prompt."""
    computed: _Computed | None = None
    """By its worker, when its own prompt was computed; None before that."""


class _Computed(NamedTuple):
    """Prompts that a worker has computed so far."""

    prompts: int = 0
    tokens: int = 0


def remote_sample(event: RequestPrefilled, prompt_tokens: int) -> PrefillTimeSample | None:
    """The time in which a prefill worker computed the prompt; None if it did not, or if its time is not known."""
    report = event.prefill
    if report is None or report.outcome != PULLED or not report.compute_ms:
        return None
    tokens = max(1, prompt_tokens - report.remote_cached_tokens)
    return PrefillTimeSample(tokens, report.compute_ms * US_PER_MS)


class SpeedLine:
    """Samples of a duration over tokens. Memory is bounded by the classes, some 20."""

    def __init__(self, classes_min: int) -> None:
        """A line needs so many classes; one class alone gives one through the origin."""
        self._classes_min = classes_min
        self._classes: dict[int, deque[PrefillTimeSample]] = {}
        self._noted = 0

    def middles(self) -> list[PrefillTimeSample]:
        """The medians of the classes that have a say, by their tokens."""
        kept = [list(samples) for samples in self._classes.values()]
        return sorted(median_sample(samples) for samples in kept if len(samples) >= CLASS_MIN)

    def takeover(self, profile_us: Callable[[int], int]) -> Ratios | None:
        """The ratios by which the profile's durations are multiplied; None with too few samples."""
        middles = self.middles()
        if self._noted < TAKEOVER_SAMPLES or not middles:
            return None
        return Ratios(
            [tokens for tokens, _ in middles], [us * ALL_BP // max(1, profile_us(tokens)) for tokens, us in middles]
        )

    def taken_over(self, start: CapacityLearned) -> tuple[int, ...] | None:
        """The profile's durations of passes, multiplied by these ratios; None with too few samples."""
        ratios = self.takeover(lambda tokens: interpolate(tokens, start.prefill_tokens, start.prefill_us))
        if ratios is None:
            return None
        return tuple(rising([tuple(map(ratios.over, start.prefill_tokens, start.prefill_us))])[0])

    def note(self, tokens: int, us: int) -> None:
        """One more sample."""
        self._classes.setdefault(tokens.bit_length(), deque(maxlen=SAMPLES_KEPT)).append(PrefillTimeSample(tokens, us))
        self._noted += 1

    def through(self, first: int, last: int) -> tuple[int, int] | None:
        """The line's values at both places; None while too little is known. Without a line that rises, the median of
        all samples stands at both."""
        if self._noted < SAMPLES_MIN:
            return None
        middles = self.middles()
        line = theil_sen(middles) if len(middles) >= self._classes_min else None
        if line is None:
            us = median_sample([sample for samples in self._classes.values() for sample in samples]).us
            return us, us
        return line.us(first), line.us(last)


class SpeedModel:
    """See the module's text. Follows the requests of one model; memory is bounded by OPEN_MAX requests."""

    def __init__(self, model: str, start: CapacityLearned | None = None) -> None:
        """`start` is a measured profile, which stands until the takeover."""
        self._model = model
        self._start = start
        self._prefill, self._decode = SpeedLine(1), SpeedLine(2)
        self._remote = SpeedLine(1)
        """Prompts of prefill workers."""
        self._open: dict[tuple[str, int], _Open] = {}
        """By request and attempt, in the order of the decisions."""
        self._held: dict[str, int] = {}
        """By worker: prompt tokens of its open requests."""
        self._computed: dict[str, _Computed] = {}
        """By worker with open requests."""
        self._prompt_line: PrefillTime | None = None
        """Of the samples so far, REFIT_EVERY of them at most left out."""
        self._prompts_noted = 0
        self._ended = self._ended_tokens = 0
        """Requests that taught a decode step, and the tokens that each of them held in the middle of its answer."""

    def __repr__(self) -> str:
        return f"<SpeedModel of {self._model}, {len(self._open)} requests open>"

    def apply(self, event: Event | UnknownEvent) -> None:
        """The event counts. O(1)."""
        match event:
            case RequestRouted() if event.model == self._model:
                self._begin((event.request, event.attempt), event.worker, event.prompt_tokens)
            case RequestPrefilled():
                self._note_computed(event)
            case RequestFinished():
                self._finish(event)

    def learned(self, bounds: EngineBounds, at_ms: int) -> CapacityLearned | None:
        """The capacity of one worker; None while too few requests have ended. O(samples)."""
        if self._start is not None:
            return self._taken_over(self._start, bounds, at_ms)
        room = max(2, bounds.room_tokens)
        decode = self._decode.through(1, room)
        prefill = self._prefill.through(1, bounds.pass_tokens) or self._remote.through(1, bounds.pass_tokens)
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

    def _taken_over(self, start: CapacityLearned, bounds: EngineBounds, at_ms: int) -> CapacityLearned | None:
        steps = DecodeSteps(start, max(1, self._ended_tokens // max(1, self._ended)))
        prefill_us = self._prefill.taken_over(start)
        decode = self._decode.takeover(steps.us)
        if prefill_us is None and decode is None:
            return None
        requests = (1,) if start.decode_requests is UNSET else start.decode_requests
        rows = (start.decode_us,) if start.decode_rows_us is UNSET else start.decode_rows_us
        if decode is not None:
            rows = tuple(
                tuple(decode.over(number * tokens, us) for tokens, us in zip(start.decode_tokens, row, strict=True))
                for number, row in zip(requests, rows, strict=True)
            )
        rows = tuple(map(tuple, rising(rows)))
        return replace(
            start,
            at_ms=at_ms,
            prefill_us=start.prefill_us if prefill_us is None else prefill_us,
            decode_us=rows[0],
            decode_rows_us=UNSET if start.decode_rows_us is UNSET else rows,
            room_tokens=bounds.room_tokens or start.room_tokens,
            slots=bounds.slots or start.slots,
            origin=LEARNED,
        )

    def _begin(self, key: tuple[str, int], worker: str, tokens: int) -> None:
        if len(self._open) >= OPEN_MAX:
            self._end(next(iter(self._open)))
        self._open[key] = _Open(worker, tokens)
        self._held[worker] = self._held.get(worker, 0) + tokens

    def _note_computed(self, event: RequestPrefilled) -> None:
        key = event.request, event.attempt
        it = self._open.get(key)
        if it is None:
            return
        now = self._computed.get(it.worker, _Computed())
        remote = remote_sample(event, it.tokens)
        if remote is not None:
            self._remote.note(*remote)
        is_here = event.prefill is None or event.prefill.outcome != PULLED
        if is_here and event.cached_tokens != CACHED_UNKNOWN:
            now = _Computed(now.prompts + 1, now.tokens + max(1, it.tokens - event.cached_tokens))
        self._computed[it.worker], self._open[key] = now, it._replace(computed=now)

    def _end(self, key: tuple[str, int]) -> tuple[int, _Computed]:
        """The request is open no more; returns the tokens that its worker's requests held with it, and the prompts that
        the worker computed since the request's own."""
        found = self._open.pop(key, None)
        if found is None:
            return 0, _Computed()
        worker, tokens, own = found
        now = self._computed.get(worker, _Computed())
        held = self._held[worker]
        if held > tokens:
            self._held[worker] = held - tokens
        else:
            del self._held[worker]
            self._computed.pop(worker, None)
        others = _Computed() if own is None else _Computed(now.prompts - own.prompts, now.tokens - own.tokens)
        return held, others

    def _finish(self, event: RequestFinished) -> None:
        held, others = self._end((event.request, event.attempt))
        stages = RequestStages.of(event.stages)
        if not held or stages is None or event.outcome not in SERVED:
            return
        if event.cached_tokens != CACHED_UNKNOWN and stages.behind >= 0 and stages.prefill > 0 and not stages.remote:
            self._prefill.note(max(1, event.prompt_tokens - event.cached_tokens), stages.prefill * US_PER_TENTH)
            self._prompts_noted += 1
            if not self._prompts_noted % REFIT_EVERY:
                self._prompt_line = theil_sen(self._prefill.middles())
        others_us = self._prompts_us(others)
        if event.output_tokens >= OUTPUT_MIN and stages.decode > 0 and others_us is not None:
            steps = event.output_tokens - 1
            self._ended, self._ended_tokens = self._ended + 1, self._ended_tokens + event.prompt_tokens + steps // 2
            took_us = max(0, stages.decode * US_PER_TENTH - others_us)
            self._decode.note(held + event.output_tokens // 2, took_us // steps)

    def _prompts_us(self, others: _Computed) -> int | None:
        """The time that these prompts took; None if nothing is known of prompts."""
        if not others.prompts:
            return 0
        tokens = others.tokens // others.prompts
        if self._start is not None:
            return others.prompts * interpolate(tokens, self._start.prefill_tokens, self._start.prefill_us)
        return None if self._prompt_line is None else others.prompts * self._prompt_line.us(tokens)
