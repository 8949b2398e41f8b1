"""Halves of surrogate pairs: an escape in JSON can say one alone, and no UTF-8 can hold it."""

from __future__ import annotations

import re

_LONE = re.compile("[\ud800-\udfff]")


def without_lone(text: str) -> str:
    """The text with U+FFFD for each of them: it can be tokenized, and sent."""
    return _LONE.sub("\ufffd", text)
