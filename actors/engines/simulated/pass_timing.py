"""Durations of the simulated engine's passes, by the tokens computed. Whole microseconds; no clock here."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from actors.engines.simulated.simulated_settings import MOCKER, SimulatedSettings
from core.events.scale import CapacityLearned
from projections.scaling.queue_model import DecodeSteps, interpolate

STEP_TOKENS = 64
"""Measured decode steps are the same for requests that differ by fewer tokens."""

_PREFILL_MS = (4.209989e-07, 1.518344e-02, 1.650142e01)
_DECODE_MS = (-25.74, 54.01, 5.74)
"""Dynamo's mock engine (ai-dynamo 1.6.1): polynomials of the prompts' tokens in the pass, and of the part of the cache
that those who decode would fill if none shared a block, at most all of it. The second is never below 5.74, so Dynamo's
floor of one millisecond is left out."""


class PassBatch:
    """The work of one pass: pieces of prompts, and a token for each decoding request. The last piece of a prompt gives
    the first token at no extra cost."""

    __slots__ = ("after", "before", "context", "decoding", "prompts")

    def __init__(self) -> None:
        self.prompts = 0
        """Prompts of which tokens are computed."""
        self.before = 0
        """Of these prompts, tokens that were computed or found before, all together ..."""
        self.after = 0
        """... and those that will be after the pass."""
        self.decoding = 0
        """Requests that have a part of their answer and get the next token, be it that they were thrown out and are
        computed anew: as Dynamo has it, nothing else is to pay for that part."""
        self.context = 0
        """Tokens so far of all that decode."""

    def __repr__(self) -> str:
        return f"<PassBatch {self.after - self.before} of {self.prompts} prompts, {self.decoding} decode>"


class PassTiming(Protocol):
    """One model of an engine's speed; a function of its arguments alone."""

    def pass_us(self, batch: PassBatch) -> int:
        """The duration of this pass: the prompts first, then the decode step."""

    def decode_ends(self, start_us: int, batch: PassBatch, count: int) -> list[int]:
        """When each of `count` passes ends that follow each other, the first of which is this, with nothing but the
        same requests that decode."""


class LinearTiming:
    """So long for each pass with prompts and each prompt token, so long for each decode step and each token that those
    who decode have."""

    def __init__(self, settings: SimulatedSettings) -> None:
        self._token_us = settings.prefill_us_per_token
        self._prompts_us = settings.prefill_us_per_pass
        self._decode_us = settings.decode_us_per_step
        self._context_us = settings.decode_us_per_context_token

    def pass_us(self, batch: PassBatch) -> int:
        """As of `PassTiming`."""
        tokens = batch.after - batch.before
        spent_us = self._prompts_us + round(tokens * self._token_us) if tokens else 0
        return spent_us + (self._decode_us + round(batch.context * self._context_us) if batch.decoding else 0)

    def decode_ends(self, start_us: int, batch: PassBatch, count: int) -> list[int]:
        """As of `PassTiming`. 0.2 us for each pass."""
        contexts = range(batch.context, batch.context + count * batch.decoding, batch.decoding)
        steps_us = (self._decode_us + round(tokens * self._context_us) for tokens in contexts)
        return list(accumulate(steps_us, initial=start_us))[1:]


class MockerTiming:
    """As Dynamo's mock engine: exact but for rounding each pass to microseconds."""

    def __init__(self, settings: SimulatedSettings) -> None:
        self._capacity_tokens = settings.capacity_blocks * settings.block_size

    def pass_us(self, batch: PassBatch) -> int:
        """As of `PassTiming`. Dynamo takes the prompts' means first, in whole tokens: so it is here."""
        spent_us = 0
        if batch.prompts:
            tokens = batch.prompts * (batch.after // batch.prompts - batch.before // batch.prompts)
            if tokens:
                square, linear, once = _PREFILL_MS
                spent_us = round((square * (tokens * tokens) + linear * tokens + once) * 1000.0)
        if batch.decoding:
            spent_us += self._decode_us(range(batch.context, batch.context + 1))[0]
        return spent_us

    def decode_ends(self, start_us: int, batch: PassBatch, count: int) -> list[int]:
        """As of `PassTiming`. 0.3 us for each pass."""
        contexts = range(batch.context, batch.context + count * batch.decoding, batch.decoding)
        return list(accumulate(self._decode_us(contexts), initial=start_us))[1:]

    def _decode_us(self, contexts: range) -> list[int]:
        """Of a decode step with so many tokens so far, for each of these numbers."""
        square, linear, once = _DECODE_MS
        capacity_tokens = self._capacity_tokens
        steps_us = []
        for tokens in contexts:
            filled = tokens / capacity_tokens if tokens < capacity_tokens else 1.0
            steps_us.append(round((square * (filled * filled) + linear * filled + once) * 1000.0))
        return steps_us


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSettings(SimulatedSettings):
    """An engine with the durations of a planner's capacity. Its `timing` counts for nothing."""

    capacity: CapacityLearned


class MeasuredTiming:
    """As a capacity has it: on the lines between its points. Prompts of one pass take as long as one prompt of as many
    tokens."""

    def __init__(self, capacity: CapacityLearned) -> None:
        self._capacity = capacity
        self._steps: dict[int, DecodeSteps] = {}
        """By the tokens of each request, which differ by STEP_TOKENS at least."""

    def pass_us(self, batch: PassBatch) -> int:
        """As of `PassTiming`."""
        it, tokens = self._capacity, batch.after - batch.before
        spent_us = max(1, interpolate(tokens, it.prefill_tokens, it.prefill_us)) if tokens else 0
        return spent_us + (self._decode_us(batch.decoding, batch.context) if batch.decoding else 0)

    def decode_ends(self, start_us: int, batch: PassBatch, count: int) -> list[int]:
        """As of `PassTiming`. 1 us for each pass, and more once for each STEP_TOKENS."""
        contexts = range(batch.context, batch.context + count * batch.decoding, batch.decoding)
        steps_us = (self._decode_us(batch.decoding, tokens) for tokens in contexts)
        return list(accumulate(steps_us, initial=start_us))[1:]

    def _decode_us(self, requests: int, tokens: int) -> int:
        each_tokens = max(1, tokens // requests // STEP_TOKENS * STEP_TOKENS)
        steps = self._steps.get(each_tokens)
        if steps is None:
            steps = self._steps[each_tokens] = DecodeSteps(self._capacity, each_tokens)
        return max(1, steps.us(min(requests * each_tokens, self._capacity.room_tokens)))


def timing_of(settings: SimulatedSettings) -> PassTiming:
    """The model that the settings name."""
    if isinstance(settings, MeasuredSettings):
        return MeasuredTiming(settings.capacity)
    return MockerTiming(settings) if settings.timing == MOCKER else LinearTiming(settings)
