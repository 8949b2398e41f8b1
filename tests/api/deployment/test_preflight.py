"""What is checked before anything is started."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from api.config.data_folder import DataFolder
from api.config.loading import load
from api.config.units import size_bytes
from api.deployment.preflight import LOG_BYTES_MIN, check_copies, check_key, fit_log_to_disk, given_key
from core.errors import CallerError
from core.keys import DeploymentKey


class Usage(NamedTuple):
    """As `shutil.disk_usage` gives it."""

    total: int
    used: int
    free: int


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The free bytes of every disk."""
    bytes_free = [1 << 40]
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(1 << 41, 0, bytes_free[0]))
    return bytes_free


def test_a_log_takes_half_of_a_small_disk(free: list[int], tmp_path: Path) -> None:
    """Unless told its size; where there is room it keeps its own."""
    assert fit_log_to_disk(load(environment={}), tmp_path).log.max_bytes == "8GiB"
    free[0] = 1 << 30
    assert size_bytes(fit_log_to_disk(load(environment={}), tmp_path / "not" / "yet").log.max_bytes) == 1 << 29


def test_a_disk_too_small_for_a_log_is_refused(free: list[int], tmp_path: Path) -> None:
    """At the bound it starts, below it one sentence says what to do."""
    free[0] = 2 * LOG_BYTES_MIN
    assert size_bytes(fit_log_to_disk(load(environment={}), tmp_path).log.max_bytes) == LOG_BYTES_MIN
    free[0] -= 2
    with pytest.raises(CallerError, match="has 127 MiB free; the log needs 64 MiB"):
        fit_log_to_disk(load(environment={}), tmp_path)


def test_a_log_that_was_told_its_size_gets_it_or_is_refused(free: list[int], tmp_path: Path) -> None:
    """What is told is reserved, so it must be there."""
    file = tmp_path / "deployment.yaml"
    file.write_text("version: 1\nlog: {max_bytes: 32MiB}\n")
    free[0] = 33 << 20
    assert fit_log_to_disk(load(file, environment={}), tmp_path).log.max_bytes == "32MiB"
    free[0] = 31 << 20
    with pytest.raises(CallerError, match=r"log\.max_bytes is 32MiB, but .* has 31 MiB free"):
        fit_log_to_disk(load(file, environment={}), tmp_path)


def test_a_log_elsewhere_is_not_measured_here(free: list[int], tmp_path: Path) -> None:
    """The disk of one's own servers is not that of this machine."""
    file = tmp_path / "deployment.yaml"
    file.write_text('version: 1\nlog: {max_bytes: 32GiB, nats: ["nats://10.0.0.1:4222"]}\n')
    free[0] = 1 << 20
    assert fit_log_to_disk(load(file, environment={}), tmp_path).log.max_bytes == "32GiB"


def test_a_log_without_its_key_is_not_begun_anew(tmp_path: Path) -> None:
    """Nothing of it could be read; a folder that is new, or whose log is elsewhere, has no key to miss."""
    data, deployment = DataFolder(tmp_path), load(environment={}).deployment
    check_key(deployment, data)
    data.nats.mkdir()
    with pytest.raises(CallerError, match=r"key is missing, and the log in .*nats can be read with that key alone"):
        check_key(deployment, data)
    elsewhere = msgspec.structs.replace(deployment.log, nats=("nats://10.0.0.1:4222",))
    check_key(msgspec.structs.replace(deployment, log=elsewhere), data)
    data.key.touch()
    check_key(deployment, data)


def test_a_given_key_is_that_of_the_data_folder(tmp_path: Path) -> None:
    """A folder without a key takes any; one with a key takes its later generations, and names what is wrong."""
    data, file = DataFolder(tmp_path), tmp_path / "given"
    key = DeploymentKey.generate()
    file.write_text(key.to_text())
    assert given_key(file, data) == key
    data.key.write_text(key.to_text())
    assert given_key(file, data) == key
    file.write_text((later := key.rotated()).to_text())
    assert given_key(file, data) == later
    data.key.write_text(later.to_text())
    file.write_text(key.to_text())
    with pytest.raises(CallerError, match=r"key has generation 1 of the key, and .*given generation 0: copy"):
        given_key(file, data)
    file.write_text(DeploymentKey.generate().to_text())
    with pytest.raises(CallerError, match="are keys of two deployments: leave --key-file out"):
        given_key(file, data)


def test_several_copies_need_several_servers() -> None:
    """The private NATS is one server; a given one is asked when the streams are made."""
    three = {"CONTRAIL_LOG_REPLICAS": "3"}
    with pytest.raises(CallerError, match=r"log\.replicas is 3, which needs a NATS cluster"):
        check_copies(load(environment=three).deployment)
    check_copies(load(environment={**three, "CONTRAIL_NATS": "nats://a:1"}).deployment)
    check_copies(load(environment={}).deployment)
