"""One secret per deployment, and what is derived from it for all its processes; the keys of clients' sessions."""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from core.errors import CallerError

KEY_BYTES = 32
SESSION_KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class DeploymentKey:
    """The deployment's secret. Its `repr` shows nothing of it."""

    secret: bytes

    def __repr__(self) -> str:
        return "<DeploymentKey>"

    def _derived(self, purpose: bytes, size: int) -> bytes:
        return hashlib.blake2b(purpose, key=self.secret, digest_size=size).digest()

    @property
    def chain_key(self) -> bytes:
        """32 bytes that key the chain digests of the log."""
        return self._derived(b"chain", 32)

    @property
    def link_key(self) -> bytes:
        """32 bytes by which the two ends of a connection between parts prove themselves to each other."""
        return self._derived(b"link", 32)

    @property
    def legacy_door_key(self) -> str:
        """The static key in the first frame of the version before: 64 hex digits. It opens nothing unless
        `link.old_handshake_until` is set."""
        return self._derived(b"door", 32).hex()

    @property
    def transfer_key(self) -> bytes:
        """32 bytes by which engines prove themselves to each other when they move blocks."""
        return self._derived(b"transfer", 32)

    @property
    def reasoning_key(self) -> bytes:
        """32 bytes that seal the reasoning which clients keep between turns."""
        return self._derived(b"reasoning", 32)

    @property
    def hash_seed(self) -> int:
        """The seed of the deployment's block hashes, 64 bits."""
        return int.from_bytes(self._derived(b"blocks", 8), "little")

    @staticmethod
    def generate() -> DeploymentKey:
        """A key from the system's randomness."""
        return DeploymentKey(secrets.token_bytes(KEY_BYTES))

    @staticmethod
    def load(path: Path) -> DeploymentKey:
        """The key in a file of 64 hex digits; CallerError says what is wrong with it."""
        try:
            secret = bytes.fromhex(path.read_text().strip())
        except FileNotFoundError as error:
            raise CallerError(f"no deployment key at {path}: copy it from the deployment's data folder") from error
        except ValueError as error:
            raise CallerError(f"{path} is not a deployment key (64 hex digits)") from error
        if len(secret) != KEY_BYTES:
            raise CallerError(f"{path} is not a deployment key (64 hex digits)")
        return DeploymentKey(secret)

    @staticmethod
    def load_or_create(path: Path) -> DeploymentKey:
        """The key in the file, which is made with mode 600 if it is missing."""
        if not path.exists():
            _create(path)
        return DeploymentKey.load(path)


def _create(path: Path) -> None:
    """The file holds a whole key; of several processes that make it at once, the first one wins."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(DeploymentKey.generate().secret.hex() + "\n")
        os.link(draft, path)
    except FileExistsError:
        pass  # another process was first: its key holds
    finally:
        draft.unlink(missing_ok=True)


def session_key(name: str, seed: int) -> str:
    """16 hex digits, the same for one name under one seed (a deployment's, as of its block hashes); empty for no name.
    Without the seed, the name can be neither read from it nor guessed."""
    if not name:
        return ""
    return hashlib.blake2b(name.encode(), digest_size=SESSION_KEY_BYTES, key=seed.to_bytes(8, "little")).hexdigest()
