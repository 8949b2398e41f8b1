"""The deployment's key: on disk for its owner alone, never shown, and never the same for two purposes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from stat import S_IMODE

import pytest

from core.errors import CallerError
from core.keys import DeploymentKey


def test_a_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    """The first call makes the file with mode 600; all later ones read the same key and leave nothing else."""
    path = tmp_path / "key"
    key = DeploymentKey.load_or_create(path)
    assert S_IMODE(path.stat().st_mode) == 0o600
    assert DeploymentKey.load_or_create(path) == DeploymentKey.load(path) == key
    assert list(tmp_path.iterdir()) == [path]


def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    """Whoever is first makes the key; nobody reads half of it."""
    for attempt in range(20):
        path = tmp_path / str(attempt)
        with ThreadPoolExecutor(4) as pool:
            keys = list(pool.map(DeploymentKey.load_or_create, [path] * 4))
        assert len(set(keys)) == 1


def test_derived_keys_differ(tmp_path: Path) -> None:
    """What one part of the system knows tells nothing of another's key, or of the secret."""
    key, other = DeploymentKey(bytes(32)), DeploymentKey(b"1" * 32)
    derived = [
        each
        for k in (key, other)
        for each in (
            k.chain_key.hex(),
            k.link_key.hex(),
            k.legacy_door_key,
            k.reasoning_key.hex(),
            k.disk_key.hex(),
            f"{k.hash_seed:016x}",
        )
    ]
    assert len(set(derived)) == 12
    assert not any(a != b and a.startswith(b) for a in derived for b in derived)
    assert all(key.secret.hex()[:16] not in each for each in derived)
    assert (len(key.chain_key), len(key.link_key), len(key.reasoning_key), len(key.disk_key)) == (32, 32, 32, 32)
    assert DeploymentKey(bytes(32)).chain_key == key.chain_key


def test_nothing_of_a_key_is_shown() -> None:
    """Neither repr nor str nor a log line holds any of it."""
    key = DeploymentKey.generate()
    assert repr(key) == str(key) == f"{key}" == "<DeploymentKey>"
    assert len(key.secret) == 32


@pytest.mark.parametrize("content", [b"", b"abc", b"00" * 31, b"00" * 33, b"zz" * 32, b"\xff\xfe" * 32])
def test_a_file_that_holds_no_key_is_named(tmp_path: Path, content: bytes) -> None:
    """The error says which file and what should stand in it, and shows nothing of what does."""
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(CallerError, match="is not a deployment key"):
        DeploymentKey.load(path)


def test_a_key_that_is_missing_is_named(tmp_path: Path) -> None:
    """A process that should have been given the key never makes another one."""
    with pytest.raises(CallerError, match="no deployment key at"):
        DeploymentKey.load(tmp_path / "key")
