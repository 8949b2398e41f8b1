"""EtcdCredentials: the identity of a client towards etcd, and the authority that etcd is checked against."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from core.errors import CallerError


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdCredentials:
    """Each part may be absent; user and password, cert and key come in pairs."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: Path | None = None
    """PEM file of the authority that signed etcd's certificate; with it the connection is TLS."""
    cert: Path | None = None
    """PEM file with the client's own certificate."""
    key: Path | None = None
    """PEM file with the key of `cert`."""

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password is None):
            raise CallerError("etcd: give both user and password, or neither")
        if (self.cert is None) != (self.key is None):
            raise CallerError("etcd: give both cert and key, or neither")
        if self.cert is not None and self.ca is None:
            raise CallerError("etcd: a client certificate needs the ca file too")
        for path in (self.ca, self.cert, self.key):
            if path is not None and not path.is_file():
                raise CallerError(f"etcd: there is no file {path}")
