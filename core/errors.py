"""Errors that Contrail raises on purpose, named by the party at fault."""

from __future__ import annotations


class ContrailError(Exception):
    """The root; never raised itself."""


class CallerError(ContrailError):
    """The caller asked for something that cannot be done; the text says what to change."""


class PeerError(ContrailError):
    """Another process broke the protocol, refused us, or went away."""


class Unavailable(PeerError):
    """A part that we need (broker, registry, worker) cannot be reached now; trying again may help."""


class WrongSequence(PeerError):
    """The subject's last sequence is not the expected one: somebody wrote, or the log was cut."""


class Refused(PeerError):
    """The other side said no for good (too large, no rights, wrong key); trying again cannot help."""


class EngineDead(PeerError):
    """The engine process is gone or wedged; its worker leaves with this reason."""


class Corrupt(ContrailError):
    """Bytes that were ours once do not read back as what we wrote."""
