"""One of a request's answers while it is generated: from tokens to text, with its stop strings, its end and its counts.

`Transcript` turns outputs into text. `PendingTokens` keeps each token until its text has left, so that logprobs and ids
never run ahead of the text. `Choice` puts an output parser and an echo behind both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from math import nan
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from api.parsers.output_parser import EMPTY_DELTA, Delta, OutputParser
from api.tokenizer.detokenizer import ByteLevelDetokenizer, Detokenizer, StopStrings
from core.generation import GenerateRequest, Output, TokenLogprobs
from core.models import GenerationFailed
from core.prompt import tokens_from_bytes


class _Entry(NamedTuple):
    token: int
    logprobs: TokenLogprobs | None
    end: int
    """The answer's characters up to and including this token's."""


class ReleasedTokens(NamedTuple):
    """Tokens released together with their text."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    ends: tuple[int, ...] = ()
    """The end of each token's text in the text that left last."""


class PendingTokens:
    """Tokens that wait for their text; O(1) per token. A token waits until its character is complete."""

    def __init__(self) -> None:
        self._incomplete: list[tuple[int, TokenLogprobs | None]] = []
        self._waiting: deque[_Entry] = deque()
        self._written = 0
        self._released = 0
        self._start = 0
        """Position of the text that was released last."""

    def __repr__(self) -> str:
        return f"<PendingTokens {len(self._incomplete) + len(self._waiting)} tokens waiting>"

    def add(self, token: int, logprobs: TokenLogprobs | None, piece: str, *, incomplete: bool) -> None:
        """The token came, and `piece` is the text that it completed: it may do so and leave another one incomplete,
        where what was to be a character turned out to be none."""
        self._incomplete.append((token, logprobs))
        if incomplete:
            self._written += len(piece)
        else:
            self.complete(piece)

    def complete(self, piece: str) -> None:
        """The incomplete tokens have become this text."""
        self._written += len(piece)
        self._waiting += [_Entry(token, logprobs, self._written) for token, logprobs in self._incomplete]
        self._incomplete.clear()

    def on_text_released(self, text: str) -> None:
        """This text has left."""
        self._start = self._released
        self._released += len(text)

    def release(self, *, everything: bool) -> ReleasedTokens:
        """Removes and returns the tokens of released text, or all tokens."""
        if everything:
            self.complete("")
        released: list[_Entry] = []
        while self._waiting and (everything or self._waiting[0].end <= self._released):
            released.append(self._waiting.popleft())
        return ReleasedTokens(
            tuple([entry.token for entry in released]),
            tuple([entry.logprobs for entry in released if entry.logprobs is not None]),
            tuple([entry.end - self._start for entry in released]),
        )


NO_TOKENS = ReleasedTokens()


class Transcript:
    """Folds a generation's outputs. After `finish` is set nothing may be pushed, and the worker can be let go.

    With a ledger or stop strings it goes token by token, so that nothing depends on which tokens came together;
    else the tokens of an output are one piece, which is cheaper.
    """

    __slots__ = (
        "_by_token",
        "_detokenizer",
        "_end_tokens",
        "_min_tokens",
        "_pending_tokens",
        "_reported_ends",
        "_stops",
        "cached_tokens",
        "completion_tokens",
        "finish",
        "stop_reason",
    )  # fmt: skip

    def __init__(
        self,
        detokenizer: Detokenizer | ByteLevelDetokenizer,
        stops: StopStrings,
        end_tokens: Collection[int] = (),
        min_tokens: int = 0,
        *,
        reported_ends: Collection[int] = (),
        pending_tokens: PendingTokens | None = None,
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._end_tokens = end_tokens
        self._min_tokens = min_tokens
        self._reported_ends = reported_ends
        self._pending_tokens = pending_tokens
        self._by_token = pending_tokens is not None or stops.has_any
        self.completion_tokens = 0
        """Tokens so far, the one that ended it included."""
        self.cached_tokens: int | None = None
        """None until the engine says so, and if it does not."""
        self.finish: str | None = None
        """`stop` or `length`, once it is over."""
        self.stop_reason: str | int | None = None
        """The stop string or the asked for stop token that ended it."""

    def __repr__(self) -> str:
        return f"<Transcript {self.completion_tokens} tokens, finish {self.finish}>"

    def push(self, output: Output) -> str:
        """The text that may leave now; 0.2 us for a token of plain text. GenerationFailed if the worker aborted."""
        assert self.finish is None
        if output.cached_tokens is not None:
            self.cached_tokens = output.cached_tokens
        if output.finish is not None:
            return self._push_last(output, output.finish)
        if self._by_token:
            return self._push_by_token(output)
        self.completion_tokens += len(output.tokens)
        return self._detokenizer.push(output.tokens)

    def release_tokens(self) -> ReleasedTokens:
        """The tokens of the text released since the last call; none without pending tokens."""
        if self._pending_tokens is None:
            return NO_TOKENS
        return self._pending_tokens.release(everything=self.finish is not None)

    def _push_last(self, output: Output, finish: str) -> str:
        if finish not in {"stop", "length"}:
            raise GenerationFailed(f"the worker ended the generation: {finish}")
        if self._by_token:
            text = self._push_by_token(output)
        else:
            self.completion_tokens += len(output.tokens)
            text = self._detokenizer.push(self._shown_tokens(output))
        return text + self._end(finish, output)

    def _push_by_token(self, output: Output) -> str:
        """Tokens behind a stop string in the same output are dropped and not counted."""
        shown = len(self._shown_tokens(output))
        text = ""
        for place, (token, logprobs) in enumerate(_entries(output)):
            self.completion_tokens += 1
            piece = self._detokenizer.push((token,)) if place < shown else ""
            if self._pending_tokens is not None:
                self._pending_tokens.add(token, logprobs, piece, incomplete=self._detokenizer.is_incomplete)
            text += self._cut_at_stop(piece)
            if self.finish is not None:
                break
        if self._pending_tokens is not None:
            self._pending_tokens.on_text_released(text)
        return text

    def _shown_tokens(self, output: Output) -> tuple[int, ...]:
        """Its tokens without the one that ended the answer, unless that is asked for."""
        ended = output.finish == "stop" and output.tokens and output.tokens[-1] in self._end_tokens
        return output.tokens[:-1] if ended and not self._stops.included else output.tokens

    def _cut_at_stop(self, piece: str) -> str:
        if self.completion_tokens < self._min_tokens:
            return piece
        text = self._stops.push(piece)
        if self._stops.found is not None:
            self.finish, self.stop_reason = "stop", self._stops.found
        return text

    def _end(self, finish: str, output: Output) -> str:
        if self.finish is not None:
            return ""
        text = self._detokenizer.flush() if self._detokenizer.is_incomplete else ""
        if self._stops.has_any:
            text = self._cut_at_stop(text)
            if self.finish is not None:
                return text
            text += self._stops.flush()
        self.finish = finish
        self.stop_reason = self._reported_end(output)
        return text

    def _reported_end(self, output: Output) -> int | None:
        ended = output.finish == "stop" and output.tokens and output.tokens[-1] in self._reported_ends
        return output.tokens[-1] if ended else None


def _entries(output: Output) -> Iterator[tuple[int, TokenLogprobs | None]]:
    """Each token with its logprobs, which are there for all of them or for none."""
    if len(output.logprobs) == len(output.tokens):
        return zip(output.tokens, output.logprobs, strict=True)
    return ((token, None) for token in output.tokens)


class Echo(NamedTuple):
    """The prompt, to be said before the answer."""

    text: str
    only: bool
    """Nothing of the answer is said: it was generated because an engine does not stop before its first token."""


class ChoiceDelta(Struct, frozen=True):
    """The new part of one choice of a request."""

    choice: int
    """Which choice of it, from 0."""
    delta: Delta
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the released tokens, if the request asked for them; nan where none is known."""
    finish: str | None = None
    """`stop`, `length` or `tool_calls` with its last delta."""
    tokens: tuple[int, ...] = ()
    """The answer's tokens that are released with the text, if the answer needs them."""
    completion_tokens: int = 0
    """Tokens of the choice until now."""


class Choice:
    """A generation with everything that its text passes through. After `finish` is set its worker can be let go."""

    def __init__(
        self,
        index: int,
        prompt: int,
        request: GenerateRequest,
        transcript: Transcript,
        parser: OutputParser | None = None,
        echo: Echo | None = None,
    ) -> None:
        self.index = index
        """Which choice of the request, from 0."""
        self.prompt = prompt
        """Which of its prompts this one answers."""
        self.request = request
        self.transcript = transcript
        self.parser = parser
        self.reasoning_tokens = 0
        self._answer_began = False
        """True once text or a call came: the reasoning is over."""
        self.prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
        """As the engine told them."""
        self.echo = echo
        self._echoed = echo is None

    def __repr__(self) -> str:
        return f"<Choice {self.index} of {self.request.id}: {self.transcript}>"

    @property
    def finish(self) -> str | None:
        """`stop`, `length` or `tool_calls`, once it is over."""
        if self.echo is not None and self.echo.only and self._echoed:
            return "length"
        called = self.parser is not None and self.parser.called
        return "tool_calls" if called and self.transcript.finish == "stop" else self.transcript.finish

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answer so far."""
        return 0 if self.echo is not None and self.echo.only else self.transcript.completion_tokens

    def outcome(self) -> str | None:
        """The end of the generation as the log keeps it: a call found in the text does not change it."""
        return self.transcript.finish or self.finish

    def push(self, output: Output) -> ChoiceDelta:
        """The delta that this output releases. GenerationFailed if the worker aborted."""
        return self.make_delta(self.transcript.push(output), output)

    def make_delta(self, text: str, output: Output) -> ChoiceDelta:
        """The same once the transcript has made this text of the output."""
        transcript = self.transcript
        if output.prompt_logprobs:
            self.prompt_logprobs = output.prompt_logprobs
        released = transcript.release_tokens()
        tokens, logprobs, _ = released
        delta = Delta(text) if self.parser is None else self._parse(self.parser, text, released)
        choice_delta = ChoiceDelta(self.index, delta, logprobs, self.finish, tokens, transcript.completion_tokens)
        return choice_delta if self._echoed else self._with_echo(choice_delta, output)

    def _parse(self, parser: OutputParser, text: str, released: ReleasedTokens) -> Delta:
        """Until the answer proper begins, each token is read by itself: so those of the reasoning can be counted."""
        tokens, _, ends = released
        delta, at, place = EMPTY_DELTA, 0, 0
        while not self._answer_began and place < len(tokens) - 1:
            end = max(at, ends[place])
            delta = delta.then(self._parse_piece(parser, text[at:end], tokens[place : place + 1]))
            at, place = end, place + 1
        if text or tokens:
            delta = delta.then(self._parse_piece(parser, text[at:], tokens[place:]))
        return delta if self.transcript.finish is None else delta.then(parser.finish())

    def _parse_piece(self, parser: OutputParser, text: str, tokens: tuple[int, ...]) -> Delta:
        delta = parser.push(text, tokens)
        if delta.reasoning:
            self.reasoning_tokens += len(tokens)
        self._answer_began = self._answer_began or bool(delta.text or delta.tools)
        return delta

    def _with_echo(self, choice_delta: ChoiceDelta, output: Output) -> ChoiceDelta:
        """The prompt stands before the first tokens, because its logprobs come with these."""
        assert self.echo is not None
        if not output.tokens and choice_delta.finish is None:
            return choice_delta
        self._echoed = True
        if self.echo.only:
            choice_delta = ChoiceDelta(self.index, EMPTY_DELTA, finish=self.finish)
        delta = replace(choice_delta.delta, text=self.echo.text + choice_delta.delta.text)
        return replace(choice_delta, delta=delta, logprobs=(*self._prompt_entries(), *choice_delta.logprobs))

    def _prompt_entries(self) -> list[TokenLogprobs]:
        """Logprobs of the prompt's tokens, if the request asks for them; nan for the first token."""
        if self.request.sampling.logprobs < 0:
            return []
        prompt = tokens_from_bytes(self.request.tokens)
        known = self.prompt_logprobs or (None,) * len(prompt)
        return [it or TokenLogprobs(token, nan) for token, it in zip(prompt, known, strict=True)]
