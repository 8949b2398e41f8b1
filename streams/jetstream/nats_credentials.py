"""NatsCredentials: the identity of a process towards the broker, and the authority that the broker is checked
against."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from core.errors import CallerError
from streams.jetstream.broker_accounts import API
from streams.jetstream.nkey import Nkey

_JWT = re.compile(rb"-----BEGIN NATS USER JWT-----\s+(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsCredentials:
    """Any of: user with password, token, creds file, nkey; and TLS files. Its `repr` shows no secret."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    creds_file: Path | None = None
    """A `.creds` file (JWT with nkey), as `nsc` writes it."""
    nkey_file: Path | None = None
    """A file with the seed of an nkey: the broker's nonce is signed, and no secret is sent."""
    api_prefix: str = API
    """Prefix of JetStream's requests: another one where the broker keeps the log in another account."""
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

    def key(self) -> Nkey | None:
        """The key that signs the broker's nonce; None without one. CallerError if its file cannot be used."""
        path = self.creds_file or self.nkey_file
        return None if path is None else Nkey.load(path)

    def user_jwt(self) -> bytes:
        """The JWT in the creds file; CallerError if there is none."""
        assert self.creds_file is not None
        found = _JWT.search(self.creds_file.read_bytes())
        if found is None:
            raise CallerError(f"NATS credentials: {self.creds_file} holds no JWT of a user")
        return found[1]

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
