"""Outputs of generations that wait for a reader (`OutputBuffer`), or for a replica's connection (`SendBuffer`)."""

from __future__ import annotations

from actors.transport.frames import Failed, StepTokens, Tokens
from actors.transport.framing import encode_frame
from core.generation import Output, PrefillReport, TokenLogprobs, is_plain_token


class OutputBuffer:
    """Outputs of one generation that no reader has taken yet, as one output.

    Adding is O(new tokens), so that a slow reader costs no more than a fast one. A reader that keeps up gets each
    output unchanged.
    """

    __slots__ = ("_cached_tokens", "_engine_us", "_finish", "_logprobs", "_once", "_only", "_prefill", "_tokens")

    def __init__(self) -> None:
        self._only: Output | None = None
        """The one output that waits, if it is one."""
        self._clear()

    def _clear(self) -> None:
        self._tokens: list[int] | None = None
        """None if at most one output waits."""
        self._finish: str | None = None
        self._cached_tokens: int | None = None
        self._engine_us: tuple[int, int] | None = None
        self._prefill: PrefillReport | None = None
        self._logprobs: list[TokenLogprobs] = []
        self._once: Output | None = None
        """The output with what comes once and rarely: the prompt's logprobs, or an embedding."""

    def __bool__(self) -> bool:
        return self._only is not None or self._tokens is not None

    def __repr__(self) -> str:
        return f"<OutputBuffer {self.count} tokens, finish {self._finish}>"

    @property
    def count(self) -> int:
        """Tokens that wait."""
        return len(self._only.tokens) if self._only is not None else len(self._tokens or ())

    def add(self, output: Output) -> None:
        """The output follows what came before it."""
        if self._tokens is None:
            if self._only is None:
                self._only = output
                return
            self._tokens = []
            self._merge(self._only)
            self._only = None
        self._merge(output)

    def _merge(self, output: Output) -> None:
        assert self._tokens is not None
        self._tokens += output.tokens
        self._finish = output.finish
        if output.cached_tokens is not None:
            self._cached_tokens, self._engine_us = output.cached_tokens, output.engine_us
        if output.prefill is not None:
            self._prefill = output.prefill
        if output.logprobs:
            self._logprobs += output.logprobs
        if output.prompt_logprobs or output.embedding:
            self._once = output

    def take(self) -> Output:
        """All of it as one output; nothing is left."""
        if self._only is not None:
            only, self._only = self._only, None
            return only
        output = Output(
            tokens=tuple(self._tokens or ()),
            finish=self._finish,
            cached_tokens=self._cached_tokens,
            prefill=self._prefill,
            engine_us=self._engine_us,
            logprobs=tuple(self._logprobs),
            prompt_logprobs=self._once.prompt_logprobs if self._once else (),
            embedding=self._once.embedding if self._once else b"",
        )
        self._clear()
        return output


class SendBuffer:
    """Of each stream what came since it was taken last, as one output, and then its end if that was a bad one."""

    def __init__(self) -> None:
        self.steps = False
        """True if the replica reads `StepTokens`."""
        self._tokens: dict[int, Output | OutputBuffer] = {}
        """By stream: its one output, or the buffer of several."""
        self._failed: dict[int, Failed] = {}

    def __bool__(self) -> bool:
        return bool(self._tokens or self._failed)

    def __len__(self) -> int:
        """Streams with tokens that wait."""
        return len(self._tokens)

    def __repr__(self) -> str:
        return f"<SendBuffer tokens of {len(self)} streams, ends of {len(self._failed)}>"

    def add(self, stream: int, output: Output) -> None:
        """More of a stream."""
        waiting = self._tokens.get(stream)
        if waiting is None:
            self._tokens[stream] = output
            return
        if not isinstance(waiting, OutputBuffer):
            only, waiting = waiting, OutputBuffer()
            self._tokens[stream] = waiting
            waiting.add(only)
        waiting.add(output)

    def fail(self, end: Failed) -> None:
        """The stream ends behind all that waits of it."""
        self._failed[end.stream] = end

    def drop(self, stream: int) -> None:
        """The replica reads the stream no longer."""
        self._tokens.pop(stream, None)
        self._failed.pop(stream, None)

    def take(self) -> bytes:
        """All of it as frames; nothing is left."""
        raw = b"".join([*self._token_frames(), *map(encode_frame, self._failed.values())])
        self._tokens.clear()
        self._failed.clear()
        return raw

    def _token_frames(self) -> list[bytes]:
        frames: list[bytes] = []
        step: dict[int, int] = {}
        for stream, waiting in self._tokens.items():
            output = waiting.take() if isinstance(waiting, OutputBuffer) else waiting
            if self.steps and is_plain_token(output):
                step[stream] = output.tokens[0]
            else:
                frames.append(encode_frame(Tokens(stream=stream, output=output)))
        if step:
            frames.append(encode_frame(StepTokens(tokens=step)))
        return frames
