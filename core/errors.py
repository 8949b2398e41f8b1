"""Errors that Contrail raises on purpose, named by the party at fault."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ContrailError(Exception):
    """The root; never raised itself."""


class CallerError(ContrailError):
    """The caller asked for something that cannot be done; the text says what to change."""


class PeerError(ContrailError):
    """Another process broke the protocol, refused us, or went away."""


class Unavailable(PeerError):
    """A part that we need (broker, registry, worker) cannot be reached now; trying again may help."""


class Declined(Unavailable):
    """The worker does not take this request now; another one may."""


class WrongSequence(PeerError):
    """The subject's last sequence is not the expected one: somebody wrote, or the log was cut."""


class Refused(PeerError):
    """The other side said no for good (too large, no rights, wrong key); trying again cannot help."""


class EngineDead(PeerError):
    """The engine process is gone or wedged; its worker leaves with this reason."""


class Corrupt(ContrailError):
    """Bytes that were ours once do not read back as what we wrote."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean own_weight?`, to put behind a sentence on an unknown name; empty if no known name resembles it.

    Case and the difference of `-` and `_` count for nothing.
    """
    plain = {_plain(each): each for each in known}
    near = get_close_matches(_plain(name), plain, n=1)
    return f"; did you mean {plain[near[0]]}?" if near else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
