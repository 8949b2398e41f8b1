"""The calls that an answer makes, as they are found: numbered, named, their arguments in pieces.

`normalize_json_object` makes the arguments the JSON object that they must be.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable
from typing import NamedTuple, NoReturn

ID_BYTES = 12
MISTRAL_ID_CHARS = 9
"""Mistral's own templates refuse ids of another length, or with other signs than letters and digits."""


def openai_id() -> str:
    """A new id of the look that OpenAI's have."""
    return f"call_{secrets.token_hex(ID_BYTES)}"


def mistral_id() -> str:
    """A new id that Mistral's templates take when the client sends it back."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(MISTRAL_ID_CHARS))


class ToolDelta(NamedTuple):
    """More of one call of a tool."""

    call: int
    """Which of the answer's calls, from 0."""
    id: str = ""
    """With the call's first delta only."""
    name: str = ""
    """Likewise."""
    arguments: str = ""
    """The next piece of its arguments, which together are JSON text."""


class ToolCallCollector:
    """Collects what leaves of the calls. With `single` the first call alone leaves."""

    def __init__(self, new_id: Callable[[], str] = openai_id, *, single: bool = False) -> None:
        self._new_id = new_id
        self._single = single
        self._deltas: list[ToolDelta] = []
        self.count = 0
        """Calls found so far, those that do not leave among them."""

    def __repr__(self) -> str:
        return f"<ToolCallCollector {self.count}>"

    def begin_call(self, name: str) -> None:
        """A new call of this tool; what follows are its arguments."""
        self.count += 1
        self._add(ToolDelta(self.count - 1, self._new_id(), name))

    def add_arguments(self, arguments: str) -> None:
        """The next piece of the last call's arguments."""
        if arguments:
            self._add(ToolDelta(self.count - 1, arguments=arguments))

    def _add(self, delta: ToolDelta) -> None:
        if self._single and delta.call > 0:
            return
        last = self._deltas[-1] if self._deltas else None
        if last is not None and last.call == delta.call:
            self._deltas[-1] = last._replace(arguments=last.arguments + delta.arguments)
        else:
            self._deltas.append(delta)

    def take_deltas(self) -> tuple[ToolDelta, ...]:
        """The deltas since the last time, one for each call that grew."""
        if not self._deltas:
            return ()
        taken = tuple(self._deltas)
        self._deltas.clear()
        return taken


_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)
"""A whole surrogate pair, half of one (the group), or any other escape: so a backslash that is escaped begins none."""


def normalize_json_object(text: str) -> str | None:
    """The object's JSON: as the model wrote it, or anew if its strings hold what must be escaped; no text at all is an
    empty one. Halves of surrogate pairs become U+FFFD: strict JSON readers would refuse the whole answer. None for what
    is no object, or broke off: such a call cannot be made."""
    text = text or "{}"
    if not _is_object(text):
        try:
            found = json.loads(text, strict=False)
            text = json.dumps(found, allow_nan=False)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict):
            return None
    return _ESCAPE.sub(lambda escape: r"\ufffd" if escape[1] else escape[0], text)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# numbers stay text: JSON bounds them nowhere
_decoder = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=_refuse)


def _is_object(text: str) -> bool:
    try:
        return isinstance(_decoder.decode(text), dict)
    except (ValueError, RecursionError):
        return False
