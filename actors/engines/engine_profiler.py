"""EngineProfiler: measures the durations of an engine's passes, by prompts that are in no cache.

1. A prefill is one prompt alone in the engine, from its first pass to its first token by the engine's own clock, or
   from sending to the first token where the engine does not tell that.
2. A decode step is the time between two tokens of a request, while as many requests get tokens as the point says.
3. If an answer ends before the steps are counted, the point is measured again with answers twice as long. A full
   machine takes long to begin so many requests. Where longer ones do not fit into the engine, the point is left out.
4. Each round measures every point once, the cheap ones first. The rounds end with the time: what is measured by then is
   the profile. Half of the time is the prefills'.
5. Prompts are random token ids, so that no block of them was seen before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from statistics import median
from typing import NamedTuple, Protocol, TypeVar, cast

from core.clock import Clock
from core.errors import CallerError, Unavailable
from core.generation import GenerateRequest, Output, Sampling
from core.ids import RequestId, new_id
from core.prompt import tokens_to_bytes
from projections.scaling.measured_profile import DecodePoint, MeasuredProfile, PrefillPoint

TOKEN_IDS = (100, 1000)
"""Ids of prompts: every vocabulary has them, and no special token is among them."""
PROMPT_MIN = 32
"""Tokens of the shortest prompt; each further one is twice as long."""
PROMPT_MAX = 16_384
"""Tokens of the longest prompt, unless told."""
CONTEXT_FACTOR = 4
"""Tokens of a decoding request, from one column of the table to the next."""
STEPS = 16
"""Decode steps of one measurement of a point."""
ANSWERS_TRIED = 4
"""Lengths of answers for one measurement of a point, each twice the one before."""
REPEATS = 5
"""Rounds at most."""
REQUESTS_MAX = 256
"""Requests at once, at most: an engine may take more, and a client's own work would be measured then."""
SLOTS = 32
"""Requests at once, of an engine that does not say how many it runs."""
UNCOUNTED = -1
"""Counted steps of a request that decodes while prompts of others are computed."""
US_PER_S = 1_000_000
Point = TypeVar("Point")


class ProfiledEngine(Protocol):
    """An engine, or a worker that has one."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[Output]:
        """As of `actors.engines.engine.Engine`."""


class EngineFacts(NamedTuple):
    """The facts of an engine that decide on what can be measured."""

    engine: str
    model: str
    block_size: int
    context_max: int
    room_tokens: int
    """0 if unknown."""
    slots: int
    """0 if unknown."""


class DecodeShape(NamedTuple):
    """Requests of one decode measurement, and the tokens that each of them holds in its middle."""

    requests: int
    tokens: int


class _Steps:
    """Steps of requests that decode together."""

    def __init__(self, requests: int) -> None:
        self.decoding = 0
        """Requests with a first token."""
        self.found_us: list[float] = []
        """Times between two tokens."""
        self._requests = self._short = requests

    @property
    def all_decode(self) -> bool:
        """No prompt is computed any more."""
        return self.decoding == self._requests

    @property
    def are_enough(self) -> bool:
        """Each request has STEPS of them."""
        return not self._short

    def add(self, us: float, *, is_last: bool) -> None:
        """One step more of a request; its last one, if it has enough now."""
        self.found_us.append(us)
        self._short -= is_last


class EngineProfiler:
    """One measurement. Nothing is written anywhere."""

    def __init__(
        self,
        engine: ProfiledEngine,
        facts: EngineFacts,
        clock: Clock,
        *,
        prompt_max: int = PROMPT_MAX,
        progress: Callable[[int, int], None] = lambda _done, _of: None,
    ) -> None:
        """`progress` gets the measured points, and those of all rounds together."""
        self._engine = engine
        self._facts = facts
        self._clock = clock
        self._progress = progress
        longest = min(prompt_max, facts.context_max - 1, (facts.room_tokens or facts.context_max) - 1)
        if longest < PROMPT_MIN:
            raise CallerError(f"prompts of {longest} tokens are too short for a profile: {PROMPT_MIN} are the least")
        self.prompts = doubled(PROMPT_MIN, longest)
        """Tokens of the prompts."""
        self.shapes = decode_shapes(facts, prompt_max)
        """Of the decode steps."""
        if not any(shape.requests == 1 for shape in self.shapes):
            raise CallerError(f"a context of {facts.context_max} tokens is too short for a profile")
        self._prefill_us: dict[int, list[float]] = {}
        self._decode_us: dict[DecodeShape, list[float]] = {}
        self._done = 0

    def __repr__(self) -> str:
        return f"<EngineProfiler, {len(self._prefill_us)} prompts and {len(self._decode_us)} steps measured>"

    async def measure(self, seconds: float, measured: str) -> MeasuredProfile:
        """The profile, after at most so many seconds. `measured` is the time that stands in it. Unavailable if the time
        was too short for one prompt and one step; errors of the engine as they are."""
        began_us = self._clock.monotonic_us()
        async with _at_most(seconds / 2):
            await self._prefill(self.prompts[0])  # the first one also pays for work that an engine does only once
            await self._rounds(self.prompts, self._measure_prefill)
        async with _at_most(seconds - (self._clock.monotonic_us() - began_us) / US_PER_S):
            if not await self._steps_of(self.shapes[0]):  # the first one pays here, too
                raise Unavailable("the engine ended an answer too early: its steps cannot be measured")
            await self._rounds(self.shapes, self._measure_decode)
        self._progress(1, 1)
        if not self._prefill_us or not any(shape.requests == 1 for shape in self._decode_us):
            raise Unavailable(f"{seconds:g} s are too short for a profile of this engine: give it more --seconds")
        facts = self._facts
        return MeasuredProfile(
            engine=facts.engine,
            model=facts.model,
            block_size=facts.block_size,
            measured=measured,
            seconds=round((self._clock.monotonic_us() - began_us) / US_PER_S, 1),
            room_tokens=facts.room_tokens,
            slots=facts.slots,
            prefill=tuple(
                PrefillPoint(tokens=tokens, us=max(1, round(median(found))), repeats=len(found))
                for tokens, found in sorted(self._prefill_us.items())
            ),
            decode=tuple(
                DecodePoint(
                    requests=shape.requests, tokens=shape.tokens, us=max(1, round(median(found))), repeats=len(found)
                )
                for shape, found in sorted(self._decode_us.items())
            ),
        )

    async def _rounds(self, points: Sequence[Point], measure: Callable[[Point], Awaitable[None]]) -> None:
        for _ in range(REPEATS):
            for point in points:
                await measure(point)
                self._done += 1
                self._progress(self._done, REPEATS * (len(self.prompts) + len(self.shapes)))

    async def _measure_prefill(self, tokens: int) -> None:
        took_us = await self._prefill(tokens)
        self._prefill_us.setdefault(tokens, []).append(took_us)

    async def _measure_decode(self, shape: DecodeShape) -> None:
        if steps_us := await self._steps_of(shape):
            self._decode_us.setdefault(shape, []).extend(steps_us)

    async def _prefill(self, tokens: int) -> int:
        """The time of one prompt."""
        sent_us = self._clock.monotonic_us()
        async with aclosing(self._outputs(_request(tokens, 1))) as outputs:
            async for output in outputs:
                if output.tokens:
                    took_us = self._clock.monotonic_us() - sent_us
                    return took_us if output.engine_us is None else output.engine_us[1]
        raise Unavailable(f"the engine ended a prompt of {tokens} tokens without any token")

    async def _steps_of(self, shape: DecodeShape) -> list[float]:
        """The times of steps, while all requests of the shape decode; none if even the longest answers ended before."""
        for output_max in self._lengths(shape):
            steps = _Steps(shape.requests)
            requests = [_request(shape.tokens - STEPS // 2, output_max) for _ in range(shape.requests)]
            following = [asyncio.ensure_future(self._follow(request, steps)) for request in requests]
            try:
                await asyncio.gather(*following)
            finally:
                for task in following:
                    task.cancel()
                await asyncio.wait(following)
            if steps.are_enough:
                return steps.found_us
        return []

    def _lengths(self, shape: DecodeShape) -> Iterator[int]:
        """Tokens of answers to try, as many as fit into the engine."""
        facts, shortest = self._facts, _output_max(shape.requests)
        room = (facts.room_tokens or shape.requests * facts.context_max) // shape.requests
        longest = max(shortest, min(room, facts.context_max) - shape.tokens)
        yield from sorted({min(longest, shortest << doublings) for doublings in range(ANSWERS_TRIED)})

    async def _follow(self, request: GenerateRequest, steps: _Steps) -> None:
        """The request's steps are counted. It ends when those of all requests are, or with its answer."""
        before_us, counted = 0, UNCOUNTED
        async with aclosing(self._outputs(request)) as outputs:
            async for output in outputs:
                if not output.tokens:
                    continue
                now_us = self._clock.monotonic_us()
                if counted == UNCOUNTED:
                    steps.decoding += not before_us
                    counted = 0 if steps.all_decode else UNCOUNTED
                elif counted < STEPS:
                    counted += len(output.tokens)
                    steps.add((now_us - before_us) / len(output.tokens), is_last=counted >= STEPS)
                before_us = now_us
                if steps.are_enough:
                    return

    def _outputs(self, request: GenerateRequest) -> AsyncGenerator[Output]:
        # a cast: each implementation is an asynchronous generator, which the protocol leaves open
        return cast(AsyncGenerator[Output], self._engine.generate(request))


def doubled(first: int, most: int, factor: int = 2) -> tuple[int, ...]:
    """Numbers from `first` on, each the factor times the one before, and the most at the end."""
    found = [first]
    while found[-1] * factor < most:
        found.append(found[-1] * factor)
    return tuple(sorted({*found, most}))


def decode_shapes(facts: EngineFacts, prompt_max: int = PROMPT_MAX) -> tuple[DecodeShape, ...]:
    """The decode steps to measure: those that fit into the engine's cache, the ones with the fewest tokens first."""
    room = facts.room_tokens or facts.context_max
    most = min(REQUESTS_MAX, facts.slots or SLOTS)
    longest = min(prompt_max, facts.context_max - _output_max(most), room - _output_max(1))
    if longest < PROMPT_MIN:
        return ()
    return tuple(
        sorted(
            (
                DecodeShape(requests, tokens)
                for requests in doubled(1, most)
                for tokens in doubled(PROMPT_MIN, longest, CONTEXT_FACTOR)
                if requests * (tokens + _output_max(requests)) <= room
            ),
            key=lambda shape: (shape.requests * shape.tokens, shape),
        )
    )


def _output_max(requests: int) -> int:
    """Tokens of an answer: it must not end while prompts of the others are computed, and steps are measured."""
    return 2 * requests + 4 * STEPS


def _request(tokens: int, output_max: int) -> GenerateRequest:
    drawn = random.choices(range(*TOKEN_IDS), k=tokens)  # noqa: S311 - they are no secret
    return GenerateRequest(
        id=RequestId(new_id()),
        tokens=tokens_to_bytes(drawn),
        sampling=Sampling(max_tokens=output_max, temperature=0.0, ignore_eos=True),
    )


@asynccontextmanager
async def _at_most(seconds: float) -> AsyncIterator[None]:
    """The body ends after so many seconds, without an error; other timeouts are raised."""
    try:
        async with asyncio.timeout(max(0.0, seconds)) as bound:
            yield
    except TimeoutError:
        if not bound.expired():
            raise
