"""The key of a session: what decisions and the log know of the name that a client gave it."""

from __future__ import annotations

import hashlib

KEY_BYTES = 8


def session_key(name: str, seed: int) -> str:
    """16 hex digits, the same for the same name under the same seed (a deployment's, as of its block hashes); empty
    for no name. The name cannot be read from it, nor tried out by whoever does not know the seed."""
    if not name:
        return ""
    return hashlib.blake2b(name.encode(), digest_size=KEY_BYTES, key=seed.to_bytes(8, "little")).hexdigest()
