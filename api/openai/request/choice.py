"""One of a request's answers while it is generated: from tokens to text, with its stop strings, its end and its counts.

`Transcript` turns outputs into text. `PendingTokens` keeps each token until its text has left, so that logprobs and ids
never run ahead of the text. `Choice` puts an output parser and an echo behind both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from math import nan
from typing import NamedTuple

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


class TakenTokens(NamedTuple):
    """Tokens whose text has left."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    ends: tuple[int, ...] = ()
    """The end of each token's text in the text that left last."""


class PendingTokens:
    """Costs O(1) per token. A token whose character is incomplete waits for the token that completes it."""

    def __init__(self) -> None:
        self._incomplete: list[tuple[int, TokenLogprobs | None]] = []
        self._waiting: deque[_Entry] = deque()
        self._written = 0
        self._left = 0
        self._start = 0
        """Where the text that left last begins."""

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
        """What was incomplete has become this text."""
        self._written += len(piece)
        self._waiting += [_Entry(token, logprobs, self._written) for token, logprobs in self._incomplete]
        self._incomplete.clear()

    def left(self, text: str) -> None:
        """This text has left."""
        self._start = self._left
        self._left += len(text)

    def take(self, *, everything: bool) -> TakenTokens:
        """The tokens whose text has left, or all of them; they are not kept."""
        if everything:
            self.complete("")
        taken: list[_Entry] = []
        while self._waiting and (everything or self._waiting[0].end <= self._left):
            taken.append(self._waiting.popleft())
        return TakenTokens(
            tuple([entry.token for entry in taken]),
            tuple([entry.logprobs for entry in taken if entry.logprobs is not None]),
            tuple([entry.end - self._start for entry in taken]),
        )


NO_TOKENS = TakenTokens()


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
        "_stops",
        "_told_ends",
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
        told_ends: Collection[int] = (),
        pending_tokens: PendingTokens | None = None,
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._end_tokens = end_tokens
        self._min_tokens = min_tokens
        self._told_ends = told_ends
        self._pending_tokens = pending_tokens
        self._by_token = pending_tokens is not None or stops.any
        self.completion_tokens = 0
        """Tokens so far, the one that ended it included."""
        self.cached_tokens = 0
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
            return self._one_by_one(output)
        self.completion_tokens += len(output.tokens)
        return self._detokenizer.push(output.tokens)

    def taken(self) -> TakenTokens:
        """The tokens whose text has left since this was asked last; none without pending tokens."""
        if self._pending_tokens is None:
            return NO_TOKENS
        return self._pending_tokens.take(everything=self.finish is not None)

    def _push_last(self, output: Output, finish: str) -> str:
        if finish not in {"stop", "length"}:
            raise GenerationFailed(f"the worker ended the generation: {finish}")
        if self._by_token:
            text = self._one_by_one(output)
        else:
            self.completion_tokens += len(output.tokens)
            text = self._detokenizer.push(self._spoken(output))
        return text + self._end(finish, output)

    def _one_by_one(self, output: Output) -> str:
        """What came behind a stop string in the same output was never said, and does not count."""
        spoken = len(self._spoken(output))
        text = ""
        for place, (token, logprobs) in enumerate(_entries(output)):
            self.completion_tokens += 1
            piece = self._detokenizer.push((token,)) if place < spoken else ""
            if self._pending_tokens is not None:
                self._pending_tokens.add(token, logprobs, piece, incomplete=self._detokenizer.waits)
            text += self._stopped(piece)
            if self.finish is not None:
                break
        if self._pending_tokens is not None:
            self._pending_tokens.left(text)
        return text

    def _spoken(self, output: Output) -> tuple[int, ...]:
        """Its tokens without the one that ended the answer, unless that is asked for."""
        ended = output.finish == "stop" and output.tokens and output.tokens[-1] in self._end_tokens
        return output.tokens[:-1] if ended and not self._stops.included else output.tokens

    def _stopped(self, piece: str) -> str:
        if self.completion_tokens < self._min_tokens:
            return piece
        text = self._stops.push(piece)
        if self._stops.found is not None:
            self.finish, self.stop_reason = "stop", self._stops.found
        return text

    def _end(self, finish: str, output: Output) -> str:
        if self.finish is not None:
            return ""
        text = self._detokenizer.flush() if self._detokenizer.waits else ""
        if self._stops.any:
            text = self._stopped(text)
            if self.finish is not None:
                return text
            text += self._stops.flush()
        self.finish = finish
        self.stop_reason = self._told_end(output)
        return text

    def _told_end(self, output: Output) -> int | None:
        ended = output.finish == "stop" and output.tokens and output.tokens[-1] in self._told_ends
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


class ChoiceDelta(NamedTuple):
    """The new part of one choice of a request."""

    choice: int
    """Which choice of it, from 0."""
    delta: Delta
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the tokens whose text leaves, if the request asked for them; nan where none is known."""
    finish: str | None = None
    """`stop`, `length` or `tool_calls` with its last delta."""
    tokens: tuple[int, ...] = ()
    """The answer's tokens whose text leaves, if something of it needs them."""
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
        self._answers = False
        """Whether something else than reasoning came."""
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
        """How its generation ended, not what was found in its text: this is what the record keeps."""
        return self.transcript.finish or self.finish

    def push(self, output: Output) -> ChoiceDelta:
        """What may leave after this output. GenerationFailed if the worker aborted."""
        return self.delta(self.transcript.push(output), output)

    def delta(self, text: str, output: Output) -> ChoiceDelta:
        """The same once the transcript has made this text of the output."""
        transcript = self.transcript
        if output.prompt_logprobs:
            self.prompt_logprobs = output.prompt_logprobs
        taken = transcript.taken()
        tokens, logprobs, _ = taken
        delta = Delta(text) if self.parser is None else self._read(self.parser, text, taken)
        choice_delta = ChoiceDelta(self.index, delta, logprobs, self.finish, tokens, transcript.completion_tokens)
        return choice_delta if self._echoed else self._with_echo(choice_delta, output)

    def _read(self, parser: OutputParser, text: str, taken: TakenTokens) -> Delta:
        """Until the answer proper begins, each token is read by itself: so those of the reasoning can be counted."""
        tokens, _, ends = taken
        delta, at, place = EMPTY_DELTA, 0, 0
        while not self._answers and place < len(tokens) - 1:
            end = max(at, ends[place])
            delta = delta.then(self._read_piece(parser, text[at:end], tokens[place : place + 1]))
            at, place = end, place + 1
        if text or tokens:
            delta = delta.then(self._read_piece(parser, text[at:], tokens[place:]))
        return delta if self.transcript.finish is None else delta.then(parser.finish())

    def _read_piece(self, parser: OutputParser, text: str, tokens: tuple[int, ...]) -> Delta:
        delta = parser.push(text, tokens)
        if delta.reasoning:
            self.reasoning_tokens += len(tokens)
        self._answers = self._answers or bool(delta.text or delta.tools)
        return delta

    def _with_echo(self, choice_delta: ChoiceDelta, output: Output) -> ChoiceDelta:
        """The prompt stands before the first tokens, because its logprobs come with these."""
        assert self.echo is not None
        if not output.tokens and choice_delta.finish is None:
            return choice_delta
        self._echoed = True
        if self.echo.only:
            choice_delta = ChoiceDelta(self.index, EMPTY_DELTA, finish=self.finish)
        delta = choice_delta.delta._replace(text=self.echo.text + choice_delta.delta.text)
        return choice_delta._replace(delta=delta, logprobs=(*self._of_prompt(), *choice_delta.logprobs))

    def _of_prompt(self) -> list[TokenLogprobs]:
        """What is known of each of its tokens, if that is asked for; of the first, nothing ever is."""
        if self.request.sampling.logprobs < 0:
            return []
        prompt = tokens_from_bytes(self.request.tokens)
        known = self.prompt_logprobs or (None,) * len(prompt)
        return [it or TokenLogprobs(token, nan) for token, it in zip(prompt, known, strict=True)]
