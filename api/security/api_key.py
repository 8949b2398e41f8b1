"""One API key: the secret that a client shows, and what is kept of it.

A key is 32 random bytes, so nobody can try all of them, and its plain SHA-256 gives nothing away: slow hashes are for
passwords, which people choose and others can guess. A slow one here would cost every request milliseconds of CPU, and
let strangers spend ours by showing keys that are none.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import datetime
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

PREFIX = "ck-"
"""What every key begins with: scanners for leaked secrets look for such a mark."""
SECRET_BYTES = 32
TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""What a tenant may be called; no ':' is in it, which separates it from a cache salt."""

Text = Annotated[str, Meta(min_length=1, max_length=128)]
Tenant = Annotated[str, Meta(pattern=rf"^{TENANT.pattern}\Z")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Instant = Annotated[datetime, Meta(tz=True)]


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is kept of a key. A field that is not known is an error: it may be a limit that we would not hold."""

    name: Text
    """For people; one of a kind in its file."""
    tenant: Tenant
    sha256: Digest
    """Of the whole key, in hex."""
    created: Instant | None = None
    expires: Instant | None = None
    """From then on it opens nothing."""
    models: tuple[str, ...] = ()
    """If any: no other model is there for it."""
    gateway: bool = False
    """Whether it may speak for other tenants, by the header x-contrail-tenant."""

    def has_expired(self, now_ms: int) -> bool:
        """Whether it opens nothing any more."""
        return self.expires is not None and self.expires.timestamp() * 1000 <= now_ms


class NewKey(NamedTuple):
    """A key just made; the secret is shown once and kept nowhere."""

    secret: str
    sha256: str


def new_key() -> NewKey:
    """A key from the system's randomness."""
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    return NewKey(secret, digest_of(secret.encode()))


def digest_of(secret: bytes) -> str:
    """What a file holds of this key; about 1 us."""
    return hashlib.sha256(secret).hexdigest()
