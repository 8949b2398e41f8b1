"""The etcd that is started: stand-ins tell versions, and the bundled etcd is real."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import CallerError
from streams.embedded import etcd_binary
from streams.embedded.embedded_etcd import VERSION_FILE, EmbeddedEtcd
from streams.embedded.etcd_binary import bundled_version, choose_binary
from streams.etcd.etcd_registry import EtcdRegistry
from streams.etcd.etcd_version import EtcdVersion

Install = Callable[[str], str]
DATA = Path("data/etcd/etcd")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """An etcd on the PATH, where there was none: a script with these lines; returns its path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def install(lines: str) -> str:
        file = folder / "etcd"
        file.write_text(f"#!/bin/sh\n{lines}\n")
        file.chmod(0o755)
        return str(file)

    return install


def tells(version: str) -> str:
    """A script that tells this version as etcd does."""
    return f'[ "$1" = --version ] && printf "etcd Version: {version}\\nGit SHA: Not provided\\n"'


@pytest.mark.parametrize("version", ["3.4.20", "3.5.9", "3.6.0-rc.1", "3.7.3"])
def test_a_sound_etcd_on_the_path_is_taken_before_the_bundled_one(install: Install, version: str) -> None:
    path = install(tells(version))
    assert choose_binary(DATA, None) == (path, EtcdVersion.parse(version))


@pytest.mark.parametrize(
    "lines",
    [tells("3.5.8"), tells("3.4.19"), tells("3.3.27"), tells("unknown"), "exit 1", "echo etcd 3.6.0", ""],
)
def test_an_etcd_that_is_not_sound_is_not_taken(install: Install, lines: str) -> None:
    path = install(lines)
    chosen = choose_binary(DATA, None)
    assert chosen.path != path
    assert chosen.version == bundled_version() == (3, 5, 1)


def test_an_etcd_that_tells_nothing_in_time_is_not_taken(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_binary, "VERSION_S", 0.2)
    install("exec /bin/sleep 30")
    begun = time.monotonic()
    assert choose_binary(DATA, None).version == bundled_version()
    assert time.monotonic() - begun < 10


def test_without_a_bundled_one_any_etcd_is_taken(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_binary, "_bundled", lambda: None)
    with pytest.raises(CallerError, match="there is no etcd"):
        choose_binary(DATA, None)
    path = install(tells("3.5.4"))
    assert choose_binary(DATA, None).path == path


def test_flags_in_the_environment_do_not_reach_etcd(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    path = install('[ -z "$ETCD_NAME" ] && printf "etcd Version: 3.6.1"')
    monkeypatch.setenv("ETCD_NAME", "other")
    assert choose_binary(DATA, None).path == path


def test_an_etcd_that_cannot_open_the_data_is_not_taken(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    """Data of 3.5 are opened by the bundled 3.5.1, not by a sound 3.4, which is older, nor by a 3.7."""
    for version in ("3.4.23", "3.7.0"):
        path = install(tells(version))
        assert choose_binary(DATA, EtcdVersion(3, 5, 1)).version == bundled_version()
        assert f"etcd {version} at {path} is not started: it cannot open the data" in caplog.text
    path = install(tells("3.6.1"))
    assert choose_binary(DATA, EtcdVersion(3, 5, 1)).path == path


async def test_data_of_a_newer_etcd_are_not_opened(install: Install, tmp_path: Path) -> None:
    """The error says what to do, and doing it helps; nothing of the data is touched before."""
    folder = tmp_path / "data"
    server = EmbeddedEtcd(folder)
    await server.start()
    await server.stop()
    assert (folder / VERSION_FILE).read_text() == "3.5.1\n"
    (folder / VERSION_FILE).write_text("3.6.1\n")
    install(tells("3.4.23"))
    with pytest.raises(CallerError) as refused:
        await server.start()
    assert "was written by etcd 3.6.1, and no etcd here opens it (etcd 3.4.23 at " in str(refused.value)
    assert f"put an etcd 3.6 on the PATH, or move {folder / 'etcd'} away" in str(refused.value)
    (folder / "etcd").rename(tmp_path / "away")
    (tmp_path / "bin" / "etcd").unlink()
    await server.start()
    await server.stop()
    assert (folder / VERSION_FILE).read_text() == "3.5.1\n"


async def test_data_without_a_version_are_the_bundled_ones(
    install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Earlier releases recorded none. A sound etcd on the PATH that is older does not keep the folder from opening."""
    server = EmbeddedEtcd(tmp_path / "data")
    await server.start()
    registry = await EtcdRegistry.connect(server.endpoint, "test", server.credentials)
    await registry.put("settings/routing", b"{}")
    await registry.close()
    await server.stop()
    (tmp_path / "data" / VERSION_FILE).unlink()
    install(tells("3.4.23"))
    await server.start()
    registry = await EtcdRegistry.connect(server.endpoint, "test", server.credentials)
    assert [change.value for change in await registry.get("")] == [b"{}"]
    await registry.close()
    await server.stop()
    assert "etcd 3.4.23" in caplog.text
