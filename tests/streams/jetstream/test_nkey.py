"""Nkeys in the form of NATS."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from core.errors import CallerError
from streams.jetstream.nats_credentials import NatsCredentials
from streams.jetstream.nkey import Nkey


def test_the_form_of_nats() -> None:
    """Seed and public key of a pair that NATS' own tools show in their documentation."""
    key = Nkey.parse("SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY")
    assert key.public == "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
    assert key.seed == "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
    assert repr(key) == f"<Nkey {key.public}>"


def test_a_signature_is_of_the_nonce() -> None:
    key = Nkey.generate()
    raw = base64.b32decode(key.public)[1:33]
    Ed25519PublicKey.from_public_bytes(raw).verify(base64.b64decode(key.sign("nonce")), b"nonce")
    assert Nkey.parse(key.seed).public == key.public


def test_files(tmp_path: Path) -> None:
    """A seed alone, made once with mode 600; a creds file; what is neither is refused without a word of it."""
    path = tmp_path / "own.nk"
    made = Nkey.load_or_create(path)
    assert (path.stat().st_mode & 0o777, Nkey.load_or_create(path).seed) == (0o600, made.seed)
    creds = tmp_path / "own.creds"
    creds.write_text(
        "-----BEGIN NATS USER JWT-----\nabc.def\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{made.seed}\n------END USER NKEY SEED------\n"
    )
    given = NatsCredentials(creds_file=creds)
    key = given.key()
    assert key is not None
    assert (key.public, given.user_jwt()) == (made.public, b"abc.def")
    path.write_text(made.seed[:-1] + ("A" if made.seed[-1] != "A" else "B"))
    with pytest.raises(CallerError, match="holds no seed of a user") as refused:
        Nkey.load(path)
    assert made.seed[:-1] not in str(refused.value)
    with pytest.raises(CallerError, match="cannot be read"):
        Nkey.load(tmp_path / "missing")
    with pytest.raises(CallerError, match="holds no JWT"):
        NatsCredentials(creds_file=path).user_jwt()
