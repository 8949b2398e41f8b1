"""Stop strings in a text that comes in pieces.

What may still become a stop string is held back, so no part of one ever leaves. The stop that is complete first
wins, the longer one if two end together: so the answer does not depend on where the pieces are cut.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Pushes pieces in, takes text out; `found` is the stop string that ended it, None so far.

    `included` says that the stop string is part of the answer.
    """

    def __init__(self, stops: Sequence[str], *, included: bool = False) -> None:
        self._stops = tuple(stops)
        self.any = bool(self._stops)
        """Whether there is anything to look for."""
        self.included = included
        self._held = ""
        self.found: str | None = None

    def __repr__(self) -> str:
        found = self.found is not None
        return f"<StopStrings {len(self._stops)} strings, {len(self._held)} characters held, found {found}>"

    def push(self, piece: str) -> str:
        """The text that is now certain to stand before any stop string; nothing after one was found."""
        if not self._stops:
            return piece
        if self.found is not None:
            return ""
        text = self._held + piece
        start, self.found = _first(text, self._stops)
        if self.found is not None:
            self._held = ""
            return text[: start + len(self.found)] if self.included else text[:start]
        end = len(text) - _open_end(text, self._stops)
        self._held = text[end:]
        return text[:end]

    def flush(self) -> str:
        """What was held back; nothing more will come."""
        held, self._held = self._held, ""
        return held


def _first(text: str, stops: Sequence[str]) -> tuple[int, str | None]:
    """Where the stop string that ends first begins, and which it is."""
    found = [(start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0]
    if not found:
        return len(text), None
    _, start, stop = min(found)
    return start, stop


def _open_end(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end may be the beginning of a stop string."""
    return max(_overlap(text, stop) for stop in stops)


def _overlap(text: str, stop: str) -> int:
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start = text.find(stop[0], start + 1)
    return 0
