"""Gathered: what came of one generation and nobody has taken yet, as one output; cheap however long it waits."""

from __future__ import annotations

from core.generation import Output, PrefillReport, TokenLogprobs


class Gathered:
    """Adding is O(new tokens), so that a reader who is far behind costs no more than one who keeps up."""

    __slots__ = ("_any", "_cached_tokens", "_finish", "_logprobs", "_once", "_prefill", "_tokens")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._any = False
        self._tokens: list[int] = []
        self._finish: str | None = None
        self._cached_tokens: int | None = None
        self._prefill: PrefillReport | None = None
        self._logprobs: list[TokenLogprobs] = []
        self._once: Output | None = None
        """The output with what comes once and rarely: the prompt's logprobs, or an embedding."""

    def __bool__(self) -> bool:
        return self._any

    def __repr__(self) -> str:
        return f"<Gathered {len(self._tokens)} tokens, finish {self._finish}>"

    def add(self, output: Output) -> None:
        """The output follows what came before it."""
        self._any = True
        self._tokens += output.tokens
        self._finish = output.finish
        if output.cached_tokens is not None:
            self._cached_tokens = output.cached_tokens
        if output.prefill is not None:
            self._prefill = output.prefill
        if output.logprobs:
            self._logprobs += output.logprobs
        if output.prompt_logprobs or output.embedding:
            self._once = output

    def take(self) -> Output:
        """All of it as one output; nothing is left."""
        output = Output(
            tokens=tuple(self._tokens),
            finish=self._finish,
            cached_tokens=self._cached_tokens,
            prefill=self._prefill,
            logprobs=tuple(self._logprobs),
            prompt_logprobs=self._once.prompt_logprobs if self._once else (),
            embedding=self._once.embedding if self._once else b"",
        )
        self._clear()
        return output
