"""NatsCredentials: the identity of a process towards the broker, and the authority that the broker is checked
against."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from core.errors import CallerError


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsCredentials:
    """Any of: user with password, token, creds file; and TLS files. Its `repr` shows no secret."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    creds_file: Path | None = None
    """A `.creds` file (JWT with nkey), as `nsc` writes it."""
    tls_ca: Path | None = None
    """Authority that signed the broker's certificate; None for the system's authorities."""
    tls_cert: Path | None = None
    """Our own certificate, for brokers that ask for one."""
    tls_key: Path | None = None

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password is None):
            raise CallerError("NATS credentials: give user and password together")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise CallerError("NATS credentials: give the TLS certificate and its key together")

    def tls_context(self) -> ssl.SSLContext | None:
        """A context that verifies the broker; None if no TLS file is named. CallerError if one cannot be read."""
        if self.tls_ca is None and self.tls_cert is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_cert is not None:
                context.load_cert_chain(self.tls_cert, self.tls_key)
        except OSError as error:  # ssl.SSLError is one
            raise CallerError(f"NATS credentials: a TLS file cannot be used: {error}") from error
        return context
