"""PrefillSpeedModel: the speed of a model's prefill workers, learned from their jobs.

A decode worker's report on a pulled prompt has the time in which the prefill worker computed it, and the tokens that it
had in its cache. So the routing stream alone teaches this speed, too. Lines, classes and the takeover from a profile
are those of `SpeedModel`.

The time is that of the whole job at the engine. A worker that computes several prompts at once seems slower than it is.
"""

from __future__ import annotations

from msgspec.structs import replace

from core.events import Event, RequestFinished, RequestPrefilled, RequestRouted, UnknownEvent
from core.events.kv import PREFILL
from core.events.scale import LEARNED, CapacityLearned
from projections.scaling.request_demand import OPEN_MAX
from projections.scaling.speed_model import EngineBounds, SpeedLine, remote_sample

NO_STEP_US = 0
"""A prefill worker decodes nothing."""


class PrefillSpeedModel:
    """See the module's text. Memory is bounded by OPEN_MAX requests without a first token."""

    def __init__(self, model: str, start: CapacityLearned | None = None) -> None:
        """`start` is a measured profile, which stands until the takeover."""
        self._model = model
        self._start = start
        self._line = SpeedLine(1)
        self._open: dict[tuple[str, int], int] = {}
        """By request and attempt, in the order of the decisions: tokens of the prompt."""

    def __repr__(self) -> str:
        return f"<PrefillSpeedModel of {self._model}, {len(self._open)} requests open>"

    def apply(self, event: Event | UnknownEvent) -> None:
        """The event counts. O(1)."""
        match event:
            case RequestRouted() if event.model == self._model:
                if len(self._open) >= OPEN_MAX:
                    del self._open[next(iter(self._open))]
                self._open[event.request, event.attempt] = event.prompt_tokens
            case RequestPrefilled():
                tokens = self._open.pop((event.request, event.attempt), None)
                sample = None if tokens is None else remote_sample(event, tokens)
                if sample is not None:
                    self._line.note(*sample)
            case RequestFinished():
                self._open.pop((event.request, event.attempt), None)

    def learned(self, bounds: EngineBounds, at_ms: int) -> CapacityLearned | None:
        """The capacity of one worker; None while too few prompts were pulled. O(samples)."""
        start = self._start
        if start is not None:
            taken_over = self._line.taken_over(start)
            if taken_over is None:
                return None
            return replace(start, at_ms=at_ms, prefill_us=taken_over, origin=LEARNED, role=PREFILL)
        line = self._line.through(1, bounds.pass_tokens)
        if line is None:
            return None
        return CapacityLearned(
            at_ms=at_ms,
            pass_tokens=bounds.pass_tokens,
            prefill_tokens=(1, bounds.pass_tokens),
            prefill_us=line,
            decode_tokens=(1,),
            decode_us=(NO_STEP_US,),
            room_tokens=bounds.room_tokens,
            startup_ms=0,
            starts=0,
            hits=(),
            slots=bounds.slots,
            devices=bounds.devices,
            origin=LEARNED,
            role=PREFILL,
        )
