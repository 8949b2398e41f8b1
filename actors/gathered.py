"""Gathered: what came of one generation and nobody has taken yet, as one output; cheap however long it waits."""

from __future__ import annotations

from core.generation import Output, PrefillReport


class Gathered:
    """Adding is O(new tokens), so that a reader who is far behind costs no more than one who keeps up."""

    __slots__ = ("_any", "_cached_tokens", "_finish", "_prefill", "_tokens")

    def __init__(self) -> None:
        self._any = False
        self._tokens: list[int] = []
        self._finish: str | None = None
        self._cached_tokens: int | None = None
        self._prefill: PrefillReport | None = None

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

    def take(self) -> Output:
        """All of it as one output; nothing is left."""
        output = Output(
            tokens=tuple(self._tokens),
            finish=self._finish,
            cached_tokens=self._cached_tokens,
            prefill=self._prefill,
        )
        self._any, self._tokens, self._finish, self._cached_tokens, self._prefill = False, [], None, None, None
        return output
