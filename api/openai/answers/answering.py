"""The generations of one request: all of its choices run at once, and get on step by step."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from actors.transport.output_stream import StreamScope, output_stream
from api.openai.answers.choice import Choice
from api.openai.answers.merging import merged
from api.openai.answers.said import Step
from api.openai.answers.usage import Usage
from api.openai.backend import Backend
from api.openai.requests.accepted import Accepted
from core.models import GenerationFailed


class TokenWatch(Protocol):
    """Who measures when tokens come."""

    def tokens(self) -> None:
        """Tokens of the first choice came now."""


class Answering:
    """Runs an accepted request against the workers, once."""

    def __init__(self, backend: Backend, accepted: Accepted, watch: TokenWatch) -> None:
        self._backend = backend
        self._accepted = accepted
        self._watch = watch

    def __repr__(self) -> str:
        return f"<Answering {len(self._accepted.choices)} choices of {self._accepted.model}>"

    async def steps(self) -> AsyncGenerator[Step, None]:
        """Everything that the choices say, until each of them is over; closing it cancels what still runs.

        Steps of one choice come in order, each with something new; those of several as they come. A failure of one
        ends all of them. Raises what `Backend.generate` raises, and GenerationFailed.
        """
        streams = [self._steps_of(choice) for choice in self._accepted.choices]
        async with StreamScope(streams[0] if len(streams) == 1 else merged(streams)) as steps:
            async for step in steps:
                yield step

    def usage(self) -> Usage:
        """What was used until now."""
        return self._accepted.usage()

    async def _steps_of(self, choice: Choice) -> AsyncGenerator[Step, None]:
        run, model, request, ended = self._backend.run, self._accepted.model, choice.request, choice.ended
        async with StreamScope(output_stream(lambda take: run(model, request, take, ended))) as outputs:
            async for output in outputs:
                if choice.index == 0:
                    self._watch.tokens()
                step = choice.step(output)
                if any(step.said) or step.tokens or step.logprobs or step.finish is not None:
                    yield step
                if choice.finish is not None:
                    return
        raise broken_off()


def broken_off() -> GenerationFailed:
    """A stream that ended without its last output."""
    return GenerationFailed("the worker's stream ended before the generation did")
