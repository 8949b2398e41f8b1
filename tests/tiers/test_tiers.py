"""The command's own parts: what makes a case fail, where a relay strikes, and how vLLM's statistics are read."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fixtures.eventually import eventually
from tests.tiers import __main__ as command
from tests.tiers.case_result import COMPLAINTS_MAX, CaseResult, table
from tests.tiers.counted_engine import Bench, hits_of
from tests.tiers.deployment_kills import other_files
from tests.tiers.source_relay import SourceRelay


def test_a_case_fails_by_its_texts() -> None:
    """One wrong text fails it; with a check switched off, right texts alone do."""
    case, unchecked = CaseResult("a"), CaseResult("b", is_wrong_expected=True)
    assert (case.failure, unchecked.failure) == ("nothing was asked",) * 2
    for each in (case, unchecked):
        each.add(is_right=True, waited_ms=5)
    assert (case.failure, unchecked.failure) == ("", "every text is right without the check")
    for each in (case, unchecked):
        each.add(is_right=False, waited_ms=3)
    assert (case.failure, unchecked.failure) == ("1 texts are unlike cold", "")
    assert (case.worst_ms, case.right, case.rounds) == (5, 1, 2)


def test_complaints_are_counted_and_bounded() -> None:
    """The first ones are kept."""
    case = CaseResult("a")
    case.add(is_right=True)
    for number in range(COMPLAINTS_MAX + 5):
        case.expect(number < 1, f"complaint {number}")
    assert case.complaints[0] == "complaint 1"
    assert (len(case.complaints), case.complained) == (COMPLAINTS_MAX, COMPLAINTS_MAX + 4)
    assert case.failure == f"{COMPLAINTS_MAX + 4} complaints, first: complaint 1"


def test_the_table() -> None:
    """A line for each case; kills are shown as its rounds."""
    case = CaseResult("a", kills=3, found=Counter(disk=4, host=0), refused=Counter(short=1), notes=["seen"])
    case.add(is_right=True, waited_ms=12.4)
    assert table([case]).splitlines()[2:] == ["| a | 3 | 1 of 1 | disk 4 | short 1 | 12 | seen |"]


def test_statistics_by_source() -> None:
    """Those of the device, and those of tiers by vLLM's names; a step without a connector has none of the latter."""

    class Source(Enum):
        DISK = "disk"

    device, tiers = SimpleNamespace(hits=32), SimpleNamespace(hits_by_source={Source.DISK: 64})
    found = hits_of(SimpleNamespace(prefix_cache_stats=device, connector_prefix_cache_stats=tiers))
    assert found == {"device": 32, "disk": 64}
    assert hits_of(SimpleNamespace(prefix_cache_stats=device, connector_prefix_cache_stats=None)) == {"device": 32}


def test_a_case_that_breaks_off_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next case runs, and the exit status and the file say so."""

    async def broken(bench: Bench) -> AsyncIterator[CaseResult]:
        assert bench.model.is_dir()
        raise RuntimeError("a defect")
        yield

    async def right(bench: Bench) -> AsyncIterator[CaseResult]:
        case = CaseResult("right")
        case.add(is_right=bench.rounds == 7)
        yield case

    def no_model(folder: Path, *_: object) -> Path:
        folder.mkdir(parents=True)
        return folder

    monkeypatch.setattr(command, "ensure_tiny_checkpoint", no_model)
    monkeypatch.setattr(command, "CASES", {"broken": broken, "right": right})
    options = SimpleNamespace(cases=None, rounds=7, kills=1, report=tmp_path / "report.json")
    assert asyncio.run(command.main(options)) == 1  # type: ignore[arg-type]
    assert '"RuntimeError: a defect"' in options.report.read_text()
    assert '"case": "right"' in options.report.read_text()
    options.cases = ["right"]
    assert asyncio.run(command.main(options)) == 0  # type: ignore[arg-type]


async def test_a_relay_strikes_once_at_its_place() -> None:
    """Before the connection to the source, or behind so many of its bytes, of which the rest is lost; never again."""
    with socket.create_server(("127.0.0.1", 0)) as source:
        relay, struck, accepted = SourceRelay("127.0.0.1", source.getsockname()[1]), list[int](), list[socket.socket]()

        def serve() -> None:
            while True:
                try:
                    channel, _ = source.accept()
                except OSError:
                    return
                accepted.append(channel)
                channel.sendall(b"x" * 1000)

        threading.Thread(target=serve, daemon=True).start()
        relay.plan(0, lambda: struck.append(len(accepted)))
        for at in (1, 2):
            with socket.create_connection(("127.0.0.1", relay.port)) as reader:
                assert len(await asyncio.to_thread(reader.recv, 1000, socket.MSG_WAITALL)) == 1000
            assert (struck, len(accepted)) == ([0], at)
        relay.plan(600, lambda: struck.append(600))
        with socket.create_connection(("127.0.0.1", relay.port)) as reader:
            assert await asyncio.to_thread(reader.recv, 1000)
            await eventually(lambda: struck == [0, 600])
            accepted[-1].sendall(b"lost")
            accepted[-1].shutdown(socket.SHUT_RDWR)
            assert b"lost" not in await asyncio.to_thread(reader.recv, 1000, socket.MSG_WAITALL)
        relay.close()
        source.shutdown(socket.SHUT_RDWR)
    for channel in accepted:
        channel.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", relay.port))


def test_what_is_left_behind_is_found(tmp_path: Path) -> None:
    """Among temporary files each new name; what others have is not counted, and found missing when it goes."""
    with other_files(tmp_path) as others:
        assert others.left() == set()
        (tmp_path / "contrail-events-x").mkdir()
        assert others.left() == {"contrail-events-x"}
        assert others.gone() == []
        others.folders[-1].joinpath("file").unlink()
        assert others.gone() == [str(others.folders[-1])]
