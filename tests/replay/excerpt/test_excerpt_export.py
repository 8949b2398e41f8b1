"""Excerpts: a request in a file of its own is explained and verified as in the whole log; what is changed in it, and in
the rules, is found there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from api.cli.replay.export import export
from core.errors import CallerError, Corrupt
from core.events.routing import DECIDE_VERSION
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.policy.rules import RULES
from replay.cache.cache_losses import cache_losses
from replay.excerpt.excerpt_export import ExcerptResult, write_excerpt
from replay.explain.explain import explain
from replay.recording.recording import Recording
from replay.recording.request_history import RequestAttempt
from replay.redact.redaction import redact
from replay.simulate.options import Options
from replay.simulate.simulated_log import KEY
from replay.simulate.simulation import simulate
from replay.verify.verify import verify
from streams.archive.archive_format import Contents
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from tests.replay.simulate.families import ENGINE, families
from tests.replay.talking import ENGINE as TALK_ENGINE
from tests.replay.talking import long_talks

RUNS = {
    "two replicas and losses": (
        Options(
            workers=4, engine=ENGINE, replicas=2, lag_ms=300, failures_per_hour=400, seed=4,
            routing=RoutingSettings(policy="time"),
        ),
        families(240, every_us=150_000, output_tokens=100),
    ),
    "talks": (
        Options(
            workers=4, engine=TALK_ENGINE, replicas=2, lag_ms=40, continues=True, routing=RoutingSettings(policy="kv")
        ),
        long_talks(10, 8, every_us=40_000),
    ),
    "approximate": (
        Options(workers=3, engine=ENGINE, replicas=2, lag_ms=60, routing=RoutingSettings(policy="approximate")),
        families(200, every_us=15_000),
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=RUNS)
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a simulated run."""
    name: str = request.param
    options, arrivals = RUNS[name]
    path = tmp_path_factory.mktemp("excerpts") / "log"
    simulate(options, arrivals, archive=path)
    return path


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of the run with two replicas and losses."""
    options, arrivals = RUNS["two replicas and losses"]
    path = tmp_path_factory.mktemp("lossy") / "log"
    simulate(options, arrivals, archive=path)
    return path


def chosen(recording: Recording) -> list[RequestAttempt]:
    """Some ordinary requests, and all with further attempts."""
    attempts = [recording.requests.attempt(row) for row in range(len(recording.requests))]
    return [*attempts[7::60], *(each for each in attempts if each.attempt)][:24]


def cut(log: Path, request: str, path: Path) -> ExcerptResult:
    with Recording.open(log, KEY) as recording:
        return write_excerpt(recording, request, path, program="contrail test", made_ms=1)


def moved(log: Path) -> str:
    """A request with several attempts, if there is one."""
    with Recording.open(log, KEY) as recording:
        return max(chosen(recording), key=lambda each: each.attempt).request


def test_it_is_explained_as_in_the_whole_log(log: Path, tmp_path: Path) -> None:
    """With every key; all attempts are made again, and all is proved or sealed."""
    with Recording.open(log, KEY) as whole:
        for number, tried in enumerate(chosen(whole)):
            path = tmp_path / f"{number}"
            done = write_excerpt(whole, tried.request, path, program="contrail test", made_ms=1)
            with Recording.open(path, KEY) as recording:
                here, found = explain(recording, tried.request, whole=True), verify(recording)
            assert msgspec.to_builtins(here) == msgspec.to_builtins(explain(whole, tried.request, whole=True))
            assert (found.verified, found.complete) == (done.decisions, True)
            assert found.proof.excerpt is not None
            assert found.proof.excerpt.chained > 0 < found.proof.excerpt.positions
            assert path.stat().st_size < 1_000_000


def test_the_losses_make_several_attempts(lossy: Path) -> None:
    """Else the comparison would say less than it seems to."""
    with Recording.open(lossy, KEY) as recording:
        assert sum(each.attempt > 0 for each in chosen(recording)) > 3


def test_each_attempt_has_its_state(lossy: Path, tmp_path: Path) -> None:
    done = cut(lossy, moved(lossy), tmp_path / "cut")
    assert done.decisions > 1
    with ArchiveReader.open(tmp_path / "cut") as archive:
        assert len(archive.snapshots()) == done.decisions


def test_without_the_key_the_seal_is_not_checked(lossy: Path, tmp_path: Path) -> None:
    cut(lossy, moved(lossy), tmp_path / "cut")
    with Recording.open(tmp_path / "cut") as recording:
        found = verify(recording)
    assert found.holds
    assert not found.complete
    assert found.proof.excerpt is not None
    assert found.proof.excerpt.seal == "unproved"


def test_a_bug_in_the_rules_is_found_in_it(lossy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs with the other sign."""
    cut(lossy, moved(lossy), tmp_path / "cut")
    right = RULES[DECIDE_VERSION]

    def flipped(*args: Any, **given: Any) -> Any:
        return [each._replace(cost=-each.cost) for each in right.score(*args, **given)]

    monkeypatch.setitem(RULES, DECIDE_VERSION, right._replace(score=flipped))
    with Recording.open(tmp_path / "cut", KEY) as recording:
        found = verify(recording)
    assert found.different == found.decisions > 0
    assert not found.holds


def test_a_changed_byte_is_found(lossy: Path, tmp_path: Path) -> None:
    """Wherever it stands."""
    cut(lossy, moved(lossy), tmp_path / "cut")
    whole = (tmp_path / "cut").read_bytes()
    for at in range(9, len(whole), len(whole) // 40):
        (tmp_path / "changed").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(Corrupt), Recording.open(tmp_path / "changed", KEY) as recording:
            verify(recording)
            for _ in recording.archive.check():
                pass


def forged(source: Path, path: Path, change: Callable[[bytes], bytes], stream: str = ROUTING) -> None:
    """A copy with all checksums and heads right, of which the last message of the stream is changed; without the key
    no seal can be made."""
    with ArchiveReader.open(source) as archive:
        was = archive.contents
        writer = ArchiveWriter(path, was.namespace, b"", was.program, was.made_ms, check=was.key_check)
        for name in archive.streams:
            span = archive.span(name)
            writer.open(name, span.epoch, span.first_seq, span.log_first_seq)  # type: ignore[arg-type]
            records = list(archive.read(name))
            if name == stream:
                records[-1] = records[-1]._replace(payload=change(records[-1].payload))
            for record in records:
                writer.add(record)
            writer.reached(name, span.last_seq)
        for manifest in archive.snapshots():
            writer.add_snapshot(manifest, archive.snapshot(manifest))
        fresh = writer.contents(was.from_ms, was.to_ms)
        writer.finish(msgspec.structs.replace(fresh, v=was.v, heads=was.heads, excerpt=was.excerpt))


def test_a_forged_message_is_found_by_the_seal(lossy: Path, tmp_path: Path) -> None:
    """The last one, which no chain proves; an untouched copy made so has the same seal, so only the change counts."""
    cut(lossy, moved(lossy), tmp_path / "cut")
    forged(tmp_path / "cut", tmp_path / "forged", lambda payload: payload[:-1] + bytes([payload[-1] ^ 1]))
    with Recording.open(tmp_path / "forged", KEY) as recording:
        found = verify(recording)
    assert not found.holds
    assert "seal" in {each.kind for each in found.proof.breaks}


def test_a_file_without_its_seal_does_not_hold(lossy: Path, tmp_path: Path) -> None:
    """Whoever takes the seal away gains nothing."""
    with Recording.open(lossy) as recording:
        request = recording.requests.attempt(9).request
        write_excerpt(recording, request, tmp_path / "cut", program="contrail test", made_ms=1)
    with Recording.open(tmp_path / "cut", KEY) as recording:
        found = verify(recording)
    assert [each.kind for each in found.proof.breaks] == ["seal"]
    assert not found.holds


def test_it_says_what_it_does_not_answer(lossy: Path, tmp_path: Path) -> None:
    request = moved(lossy)
    cut(lossy, request, tmp_path / "cut")
    with Recording.open(tmp_path / "cut", KEY) as recording:
        with pytest.raises(CallerError, match=f"cut to request {request}"):
            recording.state_at(recording.end)
        with pytest.raises(CallerError, match=f"cut to request {request}"):
            cache_losses(recording)


def test_a_redacted_one_is_verified(lossy: Path, tmp_path: Path) -> None:
    """With the key that stands in it."""
    request = moved(lossy)
    done = cut(lossy, request, tmp_path / "cut")
    with ArchiveReader.open(tmp_path / "cut") as archive:
        redact(archive, tmp_path / "redacted", KEY.chain_key, program="contrail test", made_ms=1)
    with Recording.open(tmp_path / "redacted") as recording:
        found = verify(recording)
        assert explain(recording, request, whole=True).attempts[0].again == "same"
    assert (found.verified, found.holds) == (done.decisions, True)
    assert found.proof.excerpt is not None
    assert found.proof.excerpt.seal == "holds"


def test_older_programs_refuse_it(lossy: Path, tmp_path: Path) -> None:
    """They would take its states for whole ones: its version is another than that of a range."""
    cut(lossy, moved(lossy), tmp_path / "cut")
    with ArchiveReader.open(tmp_path / "cut") as archive, ArchiveReader.open(lossy) as whole:
        assert archive.contents.v > whole.contents.v
        assert Contents.parse(archive.contents.to_bytes()).excerpt == archive.contents.excerpt


def test_the_command_writes_one(lossy: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY.secret.hex())
    request = moved(lossy)
    words = ["--log", str(lossy), "--key-file", str(tmp_path / "key"), "--json"]
    done = CliRunner().invoke(export, [str(tmp_path / "cut"), *words, "--request", request], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert (found["request"], found["decisions"] > 1, found["warnings"]) == (request, True, [])
    with pytest.raises(CallerError, match="not both"):
        CliRunner().invoke(
            export, [str(tmp_path / "b"), *words, "--request", request, "--from", request], catch_exceptions=False
        )
