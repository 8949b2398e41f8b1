"""Nkey: an Ed25519 key pair in the form of NATS. It signs the nonce of a broker, so its secret is never sent."""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from core.errors import CallerError

SECRET_BYTES = 32
CHECKSUM_BYTES = 2
_SEED = 18 << 3
"""First byte of a seed: its text begins with S."""
_USER = 20 << 3
"""Kind of a user's key: the text of its public key begins with U."""


class Nkey:
    """The key pair of one NATS user. Its `repr` shows the public key alone."""

    def __init__(self, secret: bytes) -> None:
        assert len(secret) == SECRET_BYTES
        self._secret = secret
        self._key = Ed25519PrivateKey.from_private_bytes(secret)

    def __repr__(self) -> str:
        return f"<Nkey {self.public}>"

    @property
    def public(self) -> str:
        """The name of the user at the broker: `U…`."""
        return _encode(bytes((_USER,)) + self._key.public_key().public_bytes_raw())

    @property
    def seed(self) -> str:
        """The secret as NATS writes it: `SU…`."""
        return _encode(bytes((_SEED | _USER >> 5, (_USER & 31) << 3)) + self._secret)

    def sign(self, nonce: str) -> bytes:
        """The signature of the nonce, in base64."""
        return base64.b64encode(self._key.sign(nonce.encode()))

    @staticmethod
    def generate() -> Nkey:
        """A key from the system's randomness."""
        return Nkey(secrets.token_bytes(SECRET_BYTES))

    @staticmethod
    def parse(seed: str) -> Nkey:
        """The key of a seed; ValueError if the text is none."""
        content = base64.b32decode(seed + "=" * (-len(seed) % 8))
        body, checksum = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
        if len(body) != SECRET_BYTES + 2 or body[0] & 0xF8 != _SEED or checksum != _checksum(body):
            raise ValueError("no seed of a user")
        return Nkey(body[2:])

    @staticmethod
    def load_or_create(path: Path) -> Nkey:
        """The key whose seed stands in the file, which is made with mode 600 if it is missing."""
        if not path.exists():
            _write(path, Nkey.generate().seed)
        return Nkey.load(path)

    @staticmethod
    def load(path: Path) -> Nkey:
        """The key whose seed stands in the file, alone or in a `.creds` file; CallerError if none does."""
        try:
            lines = path.read_text(encoding="utf-8").split()
            return Nkey.parse(next(line for line in lines if line.startswith("SU")))
        except OSError as error:
            raise CallerError(f"NATS credentials: {path} cannot be read: {error.strerror}") from error
        except (StopIteration, ValueError) as error:  # binascii.Error is one
            raise CallerError(f"NATS credentials: {path} holds no seed of a user (SU…)") from error


def _write(path: Path, seed: str) -> None:
    """The file holds the whole seed, and is its owner's alone."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(seed)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _encode(body: bytes) -> str:
    return base64.b32encode(body + _checksum(body)).decode().rstrip("=")


def _checksum(body: bytes) -> bytes:
    return binascii.crc_hqx(body, 0).to_bytes(CHECKSUM_BYTES, "little")
