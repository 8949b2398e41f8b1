"""One secret per deployment, and what is derived from it for all its processes; the keys of clients' sessions."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from core.codec import CHAIN_KEY_BYTES, GENERATION_MAX
from core.errors import CallerError

KEY_BYTES = 32
SESSION_KEY_BYTES = 8
FINGERPRINT_BYTES = 8
"""Enough to tell keys apart; a proof against forgery is the chain of messages alone."""
SEED = "seed"
"""Name of the fingerprint of the seed of block hashes."""


@dataclass(frozen=True, slots=True)
class DeploymentKey:
    """The deployment's secret in its newest generation. Its `repr` shows nothing of it.

    Older generations prove the chains that they sealed, and open sealed reasoning; they do nothing else.
    """

    secret: bytes
    generation: int = 0
    older: Mapping[int, bytes] = field(default_factory=dict, hash=False)
    """The secrets of earlier generations that were not removed."""
    blocks: int | None = None
    """The seed of the block hashes, if it is that of an earlier generation."""

    def __repr__(self) -> str:
        return "<DeploymentKey>"

    def _derived(self, purpose: bytes, size: int) -> bytes:
        return _derived(self.secret, purpose, size)

    @property
    def chain_key(self) -> bytes:
        """32 bytes for each generation, which key the chain digests of the log; zeros for one that was removed."""
        older = (self.older.get(generation) for generation in range(self.generation))
        keys = [bytes(CHAIN_KEY_BYTES) if secret is None else _derived(secret, b"chain", 32) for secret in older]
        return b"".join([*keys, self._derived(b"chain", CHAIN_KEY_BYTES)])

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
    def disk_key(self) -> bytes:
        """32 bytes that key the names and seals of block files. A new generation reads no file of an earlier one."""
        return self._derived(b"disk", 32)

    @property
    def reasoning_key(self) -> bytes:
        """32 bytes that seal the reasoning which clients keep between turns."""
        return self._derived(b"reasoning", 32)

    @property
    def older_reasoning_keys(self) -> list[bytes]:
        """Those of earlier generations, which open only, the newest first."""
        return [_derived(self.older[generation], b"reasoning", 32) for generation in sorted(self.older, reverse=True)]

    @property
    def hash_seed(self) -> int:
        """The seed of the deployment's block hashes, 64 bits; it outlives generations, so that caches stay known."""
        return self.blocks if self.blocks is not None else int.from_bytes(self._derived(b"blocks", 8), "little")

    def fingerprints(self, namespace: str) -> dict[str, str]:
        """By generation that is known, and by SEED: 16 hex digits that prove the key and give nothing of it away.

        SEED's outlives all generations. A fingerprint holds for one namespace.
        """
        secrets_known = {str(generation): secret for generation, secret in self.older.items()}
        secrets_known |= {str(self.generation): self.secret, SEED: self.hash_seed.to_bytes(8, "little")}
        purpose = b"fingerprint " + namespace.encode()
        return {name: _derived(secret, purpose, FINGERPRINT_BYTES).hex() for name, secret in secrets_known.items()}

    def follows(self, earlier: DeploymentKey) -> bool:
        """True if this is the same deployment's key in the same generation or a later one; generations that either
        has forgotten contradict nothing."""
        ours = {**self.older, self.generation: self.secret}
        theirs = {**earlier.older, earlier.generation: earlier.secret}
        agree = all(ours[generation] == theirs[generation] for generation in ours.keys() & theirs.keys())
        return agree and self.hash_seed == earlier.hash_seed and self.generation >= earlier.generation

    @staticmethod
    def generate() -> DeploymentKey:
        """A key from the system's randomness."""
        return DeploymentKey(secrets.token_bytes(KEY_BYTES))

    def rotated(self) -> DeploymentKey:
        """The next generation. CallerError if there can be none."""
        if self.generation >= GENERATION_MAX:
            raise CallerError(f"the key has had {GENERATION_MAX + 1} generations: begin a new deployment")
        older = {**self.older, self.generation: self.secret}
        return DeploymentKey(secrets.token_bytes(KEY_BYTES), self.generation + 1, older, self.hash_seed)

    def without(self, generation: int) -> DeploymentKey:
        """The same without an earlier generation. CallerError if it has no such one."""
        if generation == self.generation:
            raise CallerError(f"generation {generation} is the one in use: rotate the key first")
        if generation not in self.older:
            raise CallerError(f"the key has no generation {generation}")
        return replace(self, older={each: secret for each, secret in self.older.items() if each != generation})

    def to_text(self) -> str:
        """The content of a key file. A key without earlier generations is one line of 64 hex digits."""
        if self.generation == 0:
            return f"{self.secret.hex()}\n"
        lines = [f"{generation} {secret.hex()}" for generation, secret in sorted(self.older.items())]
        return "\n".join([f"blocks {self.hash_seed:016x}", *lines, f"{self.generation} {self.secret.hex()}", ""])

    @staticmethod
    def parse(text: str) -> DeploymentKey:
        """The inverse of `to_text`. ValueError if it is none."""
        if (found := _SECRET.fullmatch(text.strip())) is not None:
            return DeploymentKey(bytes.fromhex(found[0]))
        blocks: int | None = None
        generations: dict[int, bytes] = {}
        for line in text.split("\n"):
            if (seed := _BLOCKS.fullmatch(line.strip())) is not None and blocks is None:
                blocks = int(seed[1], 16)
            elif (found := _GENERATION.fullmatch(line.strip())) is not None and int(found[1]) not in generations:
                generations[int(found[1])] = bytes.fromhex(found[2])
            elif line.strip():
                raise ValueError("a line is neither a generation nor the seed of block hashes")
        if not generations:
            raise ValueError("no generation")
        newest = max(generations)
        return DeploymentKey(generations.pop(newest), newest, generations, blocks)

    @staticmethod
    def load(path: Path) -> DeploymentKey:
        """The key in a file; CallerError says what is wrong with it."""
        try:
            return DeploymentKey.parse(path.read_text())
        except FileNotFoundError as error:
            raise CallerError(f"no deployment key at {path}: copy it from the deployment's data folder") from error
        except ValueError as error:
            raise CallerError(
                f"{path} is not a deployment key (64 hex digits, or a line `N DIGITS` for each generation)"
            ) from error

    @staticmethod
    def load_or_create(path: Path) -> DeploymentKey:
        """The key in the file, which is made with mode 600 if it is missing."""
        if not path.exists():
            _create(path)
        return DeploymentKey.load(path)


_SECRET = re.compile(rf"[0-9a-fA-F]{{{2 * KEY_BYTES}}}")
_GENERATION = re.compile(rf"([0-9]{{1,2}}) ({_SECRET.pattern})")
_BLOCKS = re.compile(r"blocks ([0-9a-f]{16})")


def _derived(secret: bytes, purpose: bytes, size: int) -> bytes:
    return hashlib.blake2b(purpose, key=secret, digest_size=size).digest()


def _create(path: Path) -> None:
    """The file holds a whole key; of several processes that make it at once, the first one wins."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(DeploymentKey.generate().to_text())
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
