"""One generation's text: tokens in, text out, with stop strings, the end, and the counts for `usage`."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from api.openai.text.byte_text import ByteText
from api.openai.text.detokenizer import Detokenizer
from api.openai.text.ledger import Ledger
from api.openai.text.stops import Stops
from core.generation import Output, TokenLogprobs
from core.models import GenerationFailed


class Transcript:
    """Folds a generation's outputs. After `finish` is set nothing may be pushed, and the worker can be let go.

    With a ledger or stop strings it goes token by token, so that nothing depends on which tokens came together;
    else the tokens of an output are one piece, which is cheaper.
    """

    __slots__ = (
        "_by_token", "_detokenizer", "_end_tokens", "_ledger", "_min_tokens", "_stops", "_told_ends", "cached_tokens",
        "completion_tokens", "finish", "stop_reason",
    )  # fmt: skip

    def __init__(
        self,
        detokenizer: Detokenizer | ByteText,
        stops: Stops,
        end_tokens: Collection[int] = (),
        min_tokens: int = 0,
        *,
        told_ends: Collection[int] = (),
        ledger: Ledger | None = None,
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._end_tokens = frozenset(end_tokens)
        self._min_tokens = min_tokens
        self._told_ends = frozenset(told_ends)
        self._ledger = ledger
        self._by_token = ledger is not None or stops.any
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

    def taken(self) -> tuple[tuple[int, ...], tuple[TokenLogprobs, ...]]:
        """The tokens whose text has left since this was asked last, and their logprobs; none without a ledger."""
        return self._ledger.take(everything=self.finish is not None) if self._ledger is not None else ((), ())

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
            if self._ledger is not None:
                self._ledger.add(token, logprobs, piece, incomplete=self._detokenizer.waits)
            text += self._stopped(piece)
            if self.finish is not None:
                break
        if self._ledger is not None:
            self._ledger.left(text)
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
