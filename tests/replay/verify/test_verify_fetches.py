"""Recorded decisions with fetches: explained, and judged where the log lacks something or a record is wrong."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from core.codec import Message
from core.events import RequestRouted
from core.events.routing import PrefixFetch
from core.ids import Epoch, WorkerId
from core.subjects import ROUTING
from replay.explain.explain import explain
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.simulated_log import KEY, KV
from replay.simulate.simulation import simulate
from replay.verify.verify import verify
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from streams.log import Record
from tests.replay.simulate.said import said
from tests.replay.simulate.test_simulated_fetches import FETCHING, arrivals
from tests.replay.tampered import event_changed, tampered


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one replica with some fetches."""
    path = tmp_path_factory.mktemp("fetches") / "log"
    simulate(Options(workers=4, engine=FETCHING), arrivals(64), archive=path)
    return path


def fetched(log: Path) -> list[tuple[RequestRouted, PrefixFetch]]:
    """The decisions that chose a fetch."""
    events = [event for _, _, event in said(log, ROUTING) if isinstance(event, RequestRouted)]
    return [(event, event.fetch) for event in events if isinstance(event.fetch, PrefixFetch) and event.fetch.source]


def test_a_fetch_is_explained(log: Path) -> None:
    """Its source, its size and its expected time; and the worker that would have been chosen without it."""
    event, fetch = fetched(log)[-1]
    with Recording.open(log, KEY) as recording:
        attempt = explain(recording, event.request).attempts[-1]
        source = recording.names.worker(fetch.source)
    assert attempt.fetch is not None
    assert (attempt.fetch.worker, attempt.fetch.name, attempt.fetch.tokens) == (fetch.source, source, fetch.tokens)
    assert attempt.fetch.expected_ms == fetch.us / 1000
    assert f"{fetch.tokens} of {event.prompt_tokens} prompt tokens were to come from the host of {source}" in (
        attempt.fetch.text
    )
    assert attempt.estimates is not None
    assert attempt.estimates.exact
    assert attempt.runner_up is not None
    assert attempt.runner_up.text.startswith("without the fetch ")
    assert attempt.runner_up.needs == []


def test_a_decision_without_a_fetch_has_none(log: Path) -> None:
    with_fetch = {event.request for event, _ in fetched(log)}
    first = next(event for _, _, event in said(log, ROUTING) if isinstance(event, RequestRouted))
    assert first.request not in with_fetch
    with Recording.open(log, KEY) as recording:
        assert explain(recording, first.request).attempts[-1].fetch is None


@pytest.mark.parametrize(
    "change",
    [{"us": 1}, {"tokens": 32}, {"source": "ff" * 8}, {"busy": {"ff" * 8: 1}}],
    ids=("time", "tokens", "source", "busy"),
)
def test_a_wrong_record_is_different(log: Path, tmp_path: Path, change: dict[str, object]) -> None:
    """By the fetch; the input is covered by the digest."""
    event, fetch = fetched(log)[0]
    wrong = msgspec.structs.replace(event, fetch=msgspec.structs.replace(fetch, **change))

    def of(message: Message) -> Message:
        events = tuple(wrong if each == event else each for each in message.events)
        return msgspec.structs.replace(message, events=events)

    def changed(record: Record) -> Record:
        return event_changed(record, of) if record.stream == ROUTING else record

    with Recording.open(tampered(log, tmp_path / "wrong", changed, rechain_key=KEY.chain_key), KEY) as recording:
        found = verify(recording)
    assert found.different == 1
    assert found.differences[0].term == ("digest" if "busy" in change else "fetch")


def test_a_source_of_which_a_message_is_missing_excuses_the_fetch(log: Path, tmp_path: Path) -> None:
    """The blocks to prefill on the chosen worker rest on the source's cache: not judged, and not called different."""
    event, fetch = fetched(log)[-1]
    _, read = event.cursor[KV]
    path = tmp_path / "less"
    with ArchiveReader.open(log) as source:
        of_source = [each for each in source.read(KV) if WorkerId(fetch.source) in each.subject and each.seq <= read]
        gone = of_source[-1].seq
        writer = ArchiveWriter(path, source.contents.namespace, KEY.chain_key, "contrail test", 1)
        for stream in source.streams:
            span = source.span(stream)
            writer.open(stream, Epoch(span.epoch), span.first_seq, span.log_first_seq)
            for record in source.read(stream):
                if (stream, record.seq) != (KV, gone):
                    writer.add(record)
            writer.reached(stream, span.last_seq)
        writer.finish(writer.contents(0, source.contents.to_ms))
    with Recording.open(path, KEY) as recording:
        found = verify(recording)
    assert found.different == 0
    assert found.verified > 10
    assert sum(found.not_judged.values()) > 0
