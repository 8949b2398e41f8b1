"""Unsent: what of a worker's answers waits for one replica's connection, and the frames as which it leaves."""

from __future__ import annotations

from collections.abc import Iterator

from actors.gathered import Gathered
from actors.wire import Failed, StepTokens, Tokens, encode
from core.generation import Output, is_plain_token


class Unsent:
    """Of each stream what came since it was taken last, as one output, and then its end if that was a bad one."""

    def __init__(self) -> None:
        self.steps = False
        """Whether the replica reads `StepTokens`."""
        self._tokens: dict[int, Gathered] = {}
        self._failed: dict[int, Failed] = {}

    def __bool__(self) -> bool:
        return bool(self._tokens or self._failed)

    def __len__(self) -> int:
        """Streams with tokens that wait."""
        return len(self._tokens)

    def __repr__(self) -> str:
        return f"<Unsent tokens of {len(self)} streams, ends of {len(self._failed)}>"

    def add(self, stream: int, output: Output) -> None:
        """More of a stream."""
        waiting = self._tokens.get(stream)
        if waiting is None:
            waiting = self._tokens[stream] = Gathered()
        waiting.add(output)

    def fail(self, end: Failed) -> None:
        """The stream ends behind all that waits of it."""
        self._failed[end.stream] = end

    def drop(self, stream: int) -> None:
        """Nobody waits for it any more."""
        self._tokens.pop(stream, None)
        self._failed.pop(stream, None)

    def take(self) -> bytes:
        """All of it as frames; nothing is left."""
        raw = b"".join((*self._token_frames(), *map(encode, self._failed.values())))
        self._tokens.clear()
        self._failed.clear()
        return raw

    def _token_frames(self) -> Iterator[bytes]:
        step: dict[int, int] = {}
        for stream, waiting in self._tokens.items():
            output = waiting.take()
            if self.steps and is_plain_token(output):
                step[stream] = output.tokens[0]
            else:
                yield encode(Tokens(stream=stream, output=output))
        if step:
            yield encode(StepTokens(tokens=step))
