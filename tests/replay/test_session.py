"""Session: every question of the commands, from Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from core.errors import CallerError
from core.events import BlocksStored, RequestPrefilled
from core.settings import RoutingSettings
from core.subjects import LOAD
from replay.recording.moment import AtTime
from replay.session import ReplaySession
from tests.projections.facts import finished, joined, load, prompt
from tests.replay.staged import KEY, KV, START_MS, A, B, R, S, Stage

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "time_travel.py"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two replicas, two workers, round-robin, 30 requests of ten talks a second from each other; the tenth is slow."""
    it = Stage()
    for name, worker in (("decode-0", A), ("decode-1", B)):
        it.say(KV, worker, joined(name))
        it.say(LOAD, worker, load())
    for replica, name in ((R, "frontend-0"), (S, "frontend-1")):
        it.replica(replica, name, RoutingSettings(policy="round-robin"))
    for number in range(30):
        it.clock.advance(1000)
        talk, turn = number % 10, number // 10
        asked = prompt(*range(talk * 100, talk * 100 + 3 * (turn + 1)))
        whose, request = (R, S)[number % 2], f"talk{talk}-{turn}"
        routed = it.route(request, asked, replica=whose)
        it.say(KV, routed.worker, BlocksStored(hashes=asked.hashes()))
        cached, slow = routed.predicted_cached_tokens, 5000 * (number == 10)
        ttft_ms = 10 + asked.tokens - cached + slow
        it.tell(RequestPrefilled(request=request, attempt=0, cached_tokens=cached, ttft_ms=ttft_ms), replica=whose)
        it.tell(finished(request), replica=whose)
    return it.archived(tmp_path_factory.mktemp("session") / "log.contrail")


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text(KEY.secret.hex())
    return file


def test_decisions_are_listed(path: Path) -> None:
    """All, of one worker, of one replica, in a stretch of time, the slowest."""
    with ReplaySession.open(path) as log:
        every = log.decisions()
        assert len(every) == 30
        assert log.workers == {A: "decode-0", B: "decode-1"}
        assert log.replicas == {R: "frontend-0", S: "frontend-1"}
        assert {each.worker for each in log.decisions(worker="decode-1")} == {B}
        assert len(log.decisions(worker="decode-0")) + len(log.decisions(worker=B)) == 30
        assert len(log.decisions(replica="frontend-1")) == 15
        assert [each.request for each in log.decisions("talk3-1", "talk5-1")] == ["talk3-1", "talk4-1"]
        assert [each.request for each in log.decisions(slowest=1)] == ["talk0-1"]
        assert log.decisions(start="-3s") == every[-4:]
        assert log.decisions(end=AtTime(START_MS + 3000)) == every[:2]


def test_every_question_is_answered(path: Path, key_file: Path) -> None:
    """Explained, verified, looked at and asked what if: the same things that the commands say."""
    with ReplaySession.open(path, key_file) as log:
        attempt = log.explain("talk0-1").attempts[0]
        assert attempt.ttft_ms == log.decisions(slowest=1)[0].ttft_ms
        found = log.verify()
        assert found.holds
        assert found.decisions == found.verified == 30
        assert log.verify("talk0-1", "talk0-2", replica="frontend-0").decisions == 5
        early, late = log.at("talk0-0", replica="frontend-0"), log.at(None)
        assert sum(sum(worker.blocks.values()) for worker in early.workers) == 0
        assert sum(sum(worker.blocks.values()) for worker in late.workers) > 30
        assert log.at("-10m") != late
        assert log.what_if().changed == 0
        kv = log.what_if(policy="kv")
        assert kv.regret_blocks > 0
        assert kv == log.compare([{"policy": "kv"}, {"policy": "random"}])[0]
        assert log.what_if("talk0-1", "talk0-2", policy="kv").decisions == 10
        assert log.compare(sweep={"prefill_weight": [1, 2]}, policy="kv")[0].scenario.settings["policy"] == "kv"
        assert len(log.compare()) > 5
        assert log.first_departure() is None
        assert log.part() is None
        parted = log.part(policy="kv")
        assert parted is not None
        assert parted.first.worker != parted.second.worker
        agreed = log.compare_replicas("frontend-0", "frontend-1")
        assert set(agreed.replicas.values()) == {"frontend-0", "frontend-1"}
        assert not agreed.part
        assert all(cache.first is None for cache in log.compare_cache(next(iter(log.workers.values()))))


def test_what_is_not_there_is_said(path: Path, tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="cannot be read"):
        ReplaySession.open(tmp_path / "nothing")
    with ReplaySession.open(path) as log:
        for ask in (lambda: log.explain("nobody"), lambda: log.decisions(worker="x"), lambda: log.at("nobody")):
            with pytest.raises(CallerError):
                ask()
    other = tmp_path / "other"
    other.write_text(bytes(range(32)).hex())
    with pytest.raises(CallerError, match="key"):
        ReplaySession.open(path, other)


def test_the_example_answers_its_five_questions(path: Path, key_file: Path) -> None:
    """As a program of its own, with and without the key."""
    for words in ([str(path)], [str(path), str(key_file)]):
        done = subprocess.run(
            [sys.executable, "-P", str(EXAMPLE), *words], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("?\n") == 5
        assert "talk0-1 took" in done.stdout
        assert "30 of 30 decisions of 2 replicas come out of the log again, 0 differ" in done.stdout
        assert "round-robin would have been no better: 0 of 30 decisions change" in done.stdout
        assert "frontend-1 at 20" in done.stdout
