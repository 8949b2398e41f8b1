"""`KEY=VALUE` on the command line: settings, and settings with several values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from api.cli_settings import pairs_of
from core.errors import CallerError


def pairs(texts: Iterable[str]) -> dict[str, Any]:
    """Each `KEY=VALUE`, or several with commas between, as `contrail settings set` understands them; the last word on
    a key counts. CallerError names what is none."""
    found: dict[str, Any] = {}
    for text in texts:
        words: list[str] = []
        for part in text.split(","):
            key, equals, value = (word.strip() for word in part.partition("="))
            if not (key and equals and value):
                raise CallerError(f"{text!r} is not KEY=VALUE, or several of them with commas between")
            words += [key, value]
        found |= pairs_of(tuple(words))
    return found


def sweeps(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Each `KEY=VALUE,VALUE,…`; CallerError names what is none, and a key that is given twice."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        words = [word.strip() for word in values.split(",") if word.strip()]
        if not (key.strip() and equals and words):
            raise CallerError(f"--sweep: {text!r} is not KEY=VALUE,VALUE,…")
        several = [pairs([f"{key.strip()}={word}"]) for word in words]
        (name,) = several[0]
        if name in found:
            raise CallerError(f"--sweep: {name} is given twice")
        found[name] = [each[name] for each in several]
    return found
