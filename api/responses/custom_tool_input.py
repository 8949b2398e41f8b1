"""The input of a custom tool, read out of the arguments of the function that stands for it, as they come."""

from __future__ import annotations

import json
import re

from api.responses.tool_catalog import CUSTOM_INPUT
from api.tokenizer.token_texts import replace_lone_surrogates

_OPENING = re.compile(r'\s*\{\s*"' + CUSTOM_INPUT + r'"\s*:\s*"')
_HEX = "[0-9a-fA-F]"
_UNIT = re.compile(
    # plain text; a pair of escapes, or half of one that is known to stand alone; any other escape
    rf'[^"\\]+|\\u[dD][89abAB]{_HEX}{{2}}(?:\\u[dD][c-fC-F]{_HEX}{{2}}|(?=[^\\]|\\[^u]|\\u[^dD]|\\u[dD][^c-fC-F]))'
    rf"|\\u(?![dD][89abAB]){_HEX}{{4}}|\\[^u]|\\u(?={_HEX}{{0,3}}[^0-9a-fA-F])"
)
_ESCAPE = re.compile(rf'\\(["\\/bfnrt]|u{_HEX}{{4}})')
"""What JSON knows; any other backslash stands for itself."""


class CustomToolInput:
    """Text that grows with the arguments' JSON; what has been given never changes."""

    def __init__(self) -> None:
        self._raw = ""
        """Read and not given yet: before the text all of it, in the text an escape that broke off."""
        self._open = False
        self.ended = False
        """Whether the text is whole."""

    def __repr__(self) -> str:
        return f"<CustomToolInput {'ended' if self.ended else 'open' if self._open else 'not begun'}>"

    def push(self, piece: str) -> str:
        """The text that the next piece of the arguments adds for certain."""
        self._raw += piece
        if not self._open and not self._opened():
            return ""
        return "" if self.ended else self._text()

    def finish(self) -> str:
        """The rest; arguments of another form than the model was told are the text themselves."""
        raw, self._raw = self._raw, ""
        if self._open:
            return "" if self.ended else replace_lone_surrogates(raw)
        given = _decoded(raw)
        self.ended = True
        return replace_lone_surrogates(given if isinstance(given, str) else raw)

    def _opened(self) -> bool:
        if opening := _OPENING.match(self._raw):
            self._open, self._raw = True, self._raw[opening.end() :]
        return self._open

    def _text(self) -> str:
        at, units = 0, list[str]()
        while unit := _UNIT.match(self._raw, at):
            known = unit.group()[0] != "\\" or _ESCAPE.match(unit.group())
            units.append(unit.group() if known else "\\" + unit.group())
            at = unit.end()
        if self._raw.startswith('"', at):
            self.ended = True
            at = len(self._raw)
        self._raw = self._raw[at:]
        return replace_lone_surrogates(json.loads(f'"{"".join(units)}"', strict=False))


def _decoded(arguments: str) -> object:
    try:
        found = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return None
    return found.get(CUSTOM_INPUT) if isinstance(found, dict) else None
