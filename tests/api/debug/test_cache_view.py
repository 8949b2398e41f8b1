"""The page's report on cache hits: that of `contrail cache`, counted beside the page's other answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from api.debug import cache_view
from api.debug.cache_view import AGAIN_SHARE, CacheView, StillCounting
from core.errors import CallerError, ContrailError
from replay.cache.cache_losses import cache_losses
from replay.cache.cache_report import GROUPINGS
from replay.cache.judgement import judge
from replay.excerpt.excerpt_export import write_excerpt
from replay.recording.recording import Recording
from streams.archive.archive_reader import ArchiveReader
from tests.fixtures.eventually import eventually
from tests.page.fleet import KEY, Scale, made

DECISIONS = 400


class Counted(NamedTuple):
    view: CacheView
    log: Path

    async def report(self, by: str, decisions: int = DECISIONS) -> dict[str, Any]:
        """The answer, asked for until it is there."""
        answers: list[dict[str, Any]] = []

        def asked() -> bool:
            with ArchiveReader.open(self.log) as archive:
                try:
                    answers.append(self.view.report(archive, decisions, by))
                except StillCounting:
                    return False
            return True

        await eventually(asked, "the report", 30)
        return answers[-1]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("cache") / "run.contrail", Scale(decisions=DECISIONS))


@pytest.fixture
def counted(log: Path) -> Iterator[Counted]:
    view = CacheView(KEY)
    yield Counted(view, log)
    view.close()


@pytest.mark.parametrize("by", GROUPINGS)
async def test_it_is_the_report_of_the_command(counted: Counted, by: str) -> None:
    found = await counted.report(by)
    with Recording.open(counted.log, KEY) as recording:
        expected = cache_losses(recording, by=by)
    assert found["total"] == msgspec.to_builtins(expected.total)
    assert expected.total.sums.available > 0
    assert found["rows"] == msgspec.to_builtins(expected.rows[: cache_view.ROWS_MAX])
    assert (found["rows_total"], found["apart"]) == (len(expected.rows), expected.apart)
    assert found["texts"][0] == judge(expected.total.sums).text
    assert len(found["texts"]) == (2 if by == "tenant" else 1)


async def test_it_is_counted_once_until_the_recording_grew(counted: Counted) -> None:
    first = await counted.report("cause")
    grown = int(DECISIONS * (1 + AGAIN_SHARE))
    assert await counted.report("cause", grown) is first
    with ArchiveReader.open(counted.log) as archive, pytest.raises(StillCounting):
        counted.view.report(archive, grown + 1, "cause")
    assert await counted.report("cause", grown + 1) == first


def test_while_it_is_counted_it_says_how_far_it_is(counted: Counted) -> None:
    with ArchiveReader.open(counted.log) as archive:
        with pytest.raises(StillCounting, match="are being counted"):
            counted.view.report(archive, DECISIONS, "cause")
        with pytest.raises(StillCounting, match=r"^\d+ % of the decisions are counted$"):
            counted.view.report(archive, DECISIONS, "worker")


async def test_rows_are_bounded(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_view, "ROWS_MAX", 3)
    found = await counted.report("worker")
    assert (len(found["rows"]), found["rows_total"]) == (3, 8)


async def test_a_file_that_cannot_be_counted_says_why(counted: Counted, tmp_path: Path) -> None:
    """An excerpt has one decision, and not the messages before it."""
    with Recording.open(counted.log, KEY) as recording:
        request = recording.requests.attempt(len(recording.requests) - 1).request
        write_excerpt(recording, request, tmp_path / "one.contrail", program="contrail test", made_ms=1)
    with pytest.raises(CallerError, match="this file was cut to request"):
        await Counted(counted.view, tmp_path / "one.contrail").report("cause")


async def test_a_failure_inside_is_said_and_logged(
    counted: Counted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_args: object, **_options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cache_view, "cache_losses", fails)
    with pytest.raises(ContrailError, match="counting failed inside"):
        await counted.report("cause")
    assert "counting cache hits failed inside" in caplog.text
