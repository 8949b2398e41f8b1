"""One generation's text: tokens in, text out, with stop strings, the end, and the counts for `usage`."""

from __future__ import annotations

from collections.abc import Collection

from api.openai.detokenizer import Detokenizer
from api.openai.stops import Stops
from core.generation import Output
from core.models import GenerationFailed


class Transcript:
    """Folds a generation's outputs. After `finish` is set nothing may be pushed, and the worker can be let go."""

    def __init__(
        self, detokenizer: Detokenizer, stops: Stops, end_tokens: Collection[int] = (), min_tokens: int = 0
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._end_tokens = frozenset(end_tokens)
        self._min_tokens = min_tokens
        self.completion_tokens = 0
        """Tokens so far, the one that ended it included."""
        self.cached_tokens = 0
        self.finish: str | None = None
        """`stop` or `length`, once it is over."""

    def __repr__(self) -> str:
        return f"<Transcript {self.completion_tokens} tokens, finish {self.finish}>"

    def push(self, output: Output) -> str:
        """The text that may leave now. GenerationFailed if the worker aborted."""
        assert self.finish is None
        if output.finish not in {None, "stop", "length"}:
            raise GenerationFailed(f"the worker ended the generation: {output.finish}")
        self.completion_tokens += len(output.tokens)
        if output.cached_tokens is not None:
            self.cached_tokens = output.cached_tokens
        text = self._stopped(self._detokenizer.push(self._spoken(output)))
        return text if output.finish is None else text + self._end(output.finish)

    def _spoken(self, output: Output) -> tuple[int, ...]:
        """Its tokens without the one that ended the answer."""
        ended = output.finish == "stop" and output.tokens and output.tokens[-1] in self._end_tokens
        return output.tokens[:-1] if ended else output.tokens

    def _stopped(self, piece: str) -> str:
        if self.completion_tokens < self._min_tokens:
            return piece
        text = self._stops.push(piece)
        if self._stops.found is not None:
            self.finish = "stop"
        return text

    def _end(self, finish: str) -> str:
        if self.finish is not None:
            return ""
        text = self._stopped(self._detokenizer.flush())
        if self.finish is None:
            self.finish = finish
            text += self._stops.flush()
        return text
