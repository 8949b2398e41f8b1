"""The profile of a simulated engine: durations of its passes at some lengths, as a planner needs them."""

from __future__ import annotations

from actors.engines.simulated.pass_timing import PassBatch, timing_of
from actors.engines.simulated.simulated_settings import SimulatedSettings
from core.events.scale import CapacityLearned

POINTS = 16
"""Lengths at which a profile measures prefills and decode steps, equally far apart, beside the first token."""


def profile(settings: SimulatedSettings) -> CapacityLearned:
    """The speed of a simulated engine, measured: passes of one prompt, and decode steps of one request."""
    timing, chunk = timing_of(settings), settings.batched_tokens_max
    room = settings.capacity_blocks * settings.block_size
    prefill, decode = _points(chunk), _points(room)
    return CapacityLearned(
        at_ms=0,
        pass_tokens=chunk,
        prefill_tokens=tuple(prefill),
        prefill_us=tuple(timing.pass_us(_batch(prompts=1, after=tokens)) for tokens in prefill),
        decode_tokens=tuple(decode),
        decode_us=tuple(timing.pass_us(_batch(decoding=1, context=tokens)) for tokens in decode),
        room_tokens=room,
        slots=settings.max_seqs,
        startup_ms=0,
        starts=0,
        hits=(),
    )


def _points(most: int) -> list[int]:
    return sorted({1, *(most * step // POINTS for step in range(1, POINTS + 1))} - {0})


def _batch(**counts: int) -> PassBatch:
    batch = PassBatch()
    for name in PassBatch.__slots__:
        setattr(batch, name, counts.get(name, 0))
    return batch
