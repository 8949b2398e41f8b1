"""The arguments of a call as the JSON object that they must be, whatever a model has made of them."""

from __future__ import annotations

import json
from typing import NoReturn


def object_text(text: str) -> str | None:
    """The object's JSON: as the model wrote it, or anew if its strings hold what must be escaped; no text at all is an
    empty one. None for what is no object, or broke off: such a call cannot be made."""
    text = text or "{}"
    if _is_object(text):
        return text
    try:
        found = json.loads(text, strict=False)
        return json.dumps(found, allow_nan=False) if isinstance(found, dict) else None
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# numbers stay text: JSON bounds them nowhere
_decoder = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=_refuse)


def _is_object(text: str) -> bool:
    try:
        return isinstance(_decoder.decode(text), dict)
    except (ValueError, RecursionError):
        return False
