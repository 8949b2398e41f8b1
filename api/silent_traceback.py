"""A failure as a log may have it: where it happened and of what kind, and what it said where that cannot be a piece of
what a client asked (`core.failure`), such as the key that was not found.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator

from core.failure import safe_message


def silent_traceback(error: BaseException) -> str:
    """The stack with the kinds of the error and of those that led to it, in Python's form, with their safe texts."""
    return "".join(_lines(error)).rstrip()


def _lines(error: BaseException) -> Iterator[str]:
    led = error.__cause__ if error.__cause__ is not None or error.__suppress_context__ else error.__context__
    if led is not None:
        yield from _lines(led)
        yield "\nwhich led to:\n\n"
    yield from traceback.format_tb(error.__traceback__)
    message = safe_message(error)
    yield f"{type(error).__module__}.{type(error).__qualname__}{f': {message}' if message else ''}\n"
