"""The replicas of `bench.lag`, on programs that are none: whoever waits for one hears of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.lag import Replica
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.nats_credentials import NatsCredentials

Made = Callable[[str], Replica]
SERVER = cast(EmbeddedNats, SimpleNamespace(url="nats://nowhere", credentials=NatsCredentials(nkey_file=Path("nkey"))))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> Made:
    """A replica that is this shell program."""

    def made(program: str) -> Replica:
        file = tmp_path / "replica"
        file.write_text(f"#!/bin/sh\n{program}\n")
        file.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(file))
        replica = Replica(SERVER, 0)
        request.addfinalizer(replica.kill)
        return replica

    return made


async def test_one_that_ends_is_not_ready(made: Made) -> None:
    with pytest.raises(SystemExit, match="ended before it was ready"):
        await made("exit 1").ready()


async def test_one_that_says_something_else_is_not_ready(made: Made) -> None:
    with pytest.raises(SystemExit, match="not that it is ready"):
        await made("echo steady").ready()


async def test_what_it_measured_is_waited_for_until_a_time(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.lag.RESULT_S", 0.2)
    replica = made("echo ready; exec sleep 60")
    await replica.ready()

    with pytest.raises(SystemExit, match=r"not done within 0\.2 s"):
        await replica.result()


async def test_one_that_ends_without_a_result_is_noticed(made: Made) -> None:
    replica = made("read line; echo ready; read line; exit 1")
    await replica.ready()

    with pytest.raises(SystemExit, match="ended before it was done"):
        await replica.result()


async def test_what_it_measured_is_what_it_says(made: Made) -> None:
    replica = made("""read line; echo ready; read line; echo '{"events": 3}'""")
    await replica.ready()

    found: dict[str, Any] = await replica.result()

    assert found == {"events": 3}
