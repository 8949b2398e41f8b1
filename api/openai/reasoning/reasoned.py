"""An answer with reasoning before the rest of it, and the reader of that rest behind."""

from __future__ import annotations

from collections.abc import Sequence

from api.openai.answers.said import Interpreter, Said


class Reasoned:
    """An `Interpreter`: the first tells the reasoning apart, and what is text to it goes on to the second."""

    def __init__(self, first: Interpreter, second: Interpreter | None, *, told: bool) -> None:
        """`told`: whether the client wants to read the reasoning; without a second, the rest is text."""
        self._first = first
        self._second = second
        self._told = told
        self.keeps_special_tokens = first.keeps_special_tokens or (second is not None and second.keeps_special_tokens)

    def __repr__(self) -> str:
        return f"<Reasoned {self._first}, {self._second}>"

    @property
    def called(self) -> bool:
        """Whether the rest has a call of a tool."""
        return self._second is not None and self._second.called

    def push(self, text: str, tokens: Sequence[int]) -> Said:
        """What the new text says for certain."""
        return self._read(self._first.push(text, tokens), tokens)

    def finish(self) -> Said:
        """What was held back."""
        said = self._read(self._first.finish(), ())
        if self._second is None:
            return said
        last = self._second.finish()
        return Said(said.text + last.text, said.reasoning, (*said.tools, *last.tools))

    def _read(self, said: Said, tokens: Sequence[int]) -> Said:
        reasoning = said.reasoning if self._told else ""
        if self._second is None or not said.text:
            return Said(said.text, reasoning)
        return self._second.push(said.text, tokens)._replace(reasoning=reasoning)
