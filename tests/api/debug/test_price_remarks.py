"""The page's remarks on learned durations of prefills."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from api.debug import price_remarks
from api.debug.fold_thread import RecordingState
from api.debug.price_remarks import PriceRemarks, remark
from projections.policy.prefill_time import PrefillTime
from replay.explain.price_check import PriceCheck
from streams.archive.archive_reader import ArchiveReader
from tests.replay.priced import TRUE, WRONG, PricedStage
from tests.replay.staged import KEY

CHECK = PriceCheck(
    model="m", decisions=9, samples=20, tokens=100.0, estimate_ms=50.0, actual_ms=5.0, factor=10.0, apart_ms=45.0,
    shown=PrefillTime(2_000, 20_500), beyond=8,
)  # fmt: skip


def remarks(scene: PricedStage, path: Path) -> list[str]:
    """Those of the page, once it has read and folded all."""
    state = RecordingState(KEY)
    for _ in state.show(ArchiveReader.open(scene.stage.archived(path))):
        assert not state.prices.texts, "nothing is said before all is read"
    found = state.prices.texts
    state.close()
    return found


def test_a_wrong_price_is_said_when_all_is_read(tmp_path: Path) -> None:
    scene = PricedStage()
    for _ in range(20):
        scene.ask(WRONG)
    assert remarks(scene, tmp_path / "wrong") == [
        (
            "tiny: prefills are taken to last 21.7 times what they take, in the median 173.9 ms instead of 8.0 ms "
            "of 20 prefills alone on their worker, which show 20 us a token; 20 of 20 decisions are far from that."
        )
    ]
    right = PricedStage()
    for _ in range(20):
        right.ask(TRUE)
    assert remarks(right, tmp_path / "right") == []


def test_only_the_newest_decisions_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = PricedStage()
    for line in (WRONG, TRUE):
        for _ in range(16):
            scene.ask(line)
    monkeypatch.setattr(price_remarks, "DECISIONS_MAX", 17)
    assert remarks(scene, tmp_path / "seventeen") == []
    monkeypatch.setattr(price_remarks, "DECISIONS_MAX", 33)
    scene.ask(WRONG)
    assert len(remarks(scene, tmp_path / "all")) == 1


@pytest.mark.parametrize(("again_after", "said"), [(20, 1), (21, 0)])
def test_a_recording_that_grows_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again_after: int, said: int
) -> None:
    monkeypatch.setattr(price_remarks, "AGAIN_AFTER", again_after)
    scene, found = PricedStage(), PriceRemarks()
    for line, count in ((TRUE, 16), (WRONG, 20)):
        for _ in range(count):
            scene.ask(line)
        with scene.stage.recording(tmp_path / str(count)) as recording:
            for _ in found.steps(recording, recording.requests):
                pass
    assert len(found.texts) == said


def test_the_sentence_without_a_line() -> None:
    """And on a fleet where no prefill was alone."""
    assert remark(replace(CHECK, shown=None, alone=False)) == (
        "m: prefills are taken to last 10.0 times what they take, in the median 50.0 ms instead of 5.0 ms of 20 "
        "prefills without another prefill beside them."
    )
