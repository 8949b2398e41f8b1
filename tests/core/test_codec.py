"""Messages: what was sealed is read back, and nothing that a peer sends does more than raise Corrupt."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from core.block_spans import SPAN_BLOCKS, Piece, packed
from core.codec import (
    CHAIN_START,
    DECISION_TYPES,
    READABLE,
    decode_message,
    digest,
    encode_event,
    encode_message,
    encode_readable,
    is_decision,
    is_encoding,
)
from core.errors import Corrupt
from core.events import (
    EVENT_TYPES,
    EVENT_VERSION,
    Adapter,
    BlocksEvent,
    BlocksStored,
    DecisionCounts,
    Event,
    Points,
    PoolAccess,
    PromptBase,
    ReplicaRestated,
    RequestFinished,
    RequestPrefilled,
    RequestRouted,
    UnknownEvent,
    WorkerLeft,
)
from core.events.compact_decision import stream_names
from core.events.routing import COLUMNS, PROGRESS_VERSION, ROUTED_VERSION, TIMED_COLUMNS, Columns, PrefixFetch
from core.events.scale import (
    DemandCell,
    HitRate,
    JudgedWorkers,
    PrefillDemand,
    ScaleCandidate,
    ScaleForecast,
    ScaleJudgement,
)
from core.generation import PrefillReport
from core.ids import SourceId, StreamName
from core.kv_transfer import FetchAddress, KvBlocks
from core.prompt import known_depths
from core.subjects import SNAPSHOTS
from streams.topology import Topology
from tests.projections.facts import finished, prefilled, routed

SOURCE = SourceId("0123456789abcdef")
pack = msgspec.msgpack.Encoder().encode

words = st.text(max_size=8)
counts = st.integers(0, 2**63)
columns = st.lists(st.binary(min_size=8, max_size=8), max_size=5).map(b"".join)
numbers = st.lists(counts, max_size=3).map(tuple)
finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def topologies(draw: st.DrawFn) -> dict[StreamName, tuple[int, int]]:
    """A cursor of the streams that a log has."""
    names = stream_names(draw(st.integers(1, 16)))
    return {name: draw(st.tuples(counts, counts)) for name in names}


cursors = topologies() | st.dictionaries(words, st.tuples(counts, counts), max_size=3)
BY_TYPE: dict[object, st.SearchStrategy[Any]] = {
    str: words,
    bytes: columns,
    bool: st.booleans(),
    int: counts,
    int | None: st.none() | counts,
    dict[str, Any]: st.dictionaries(words, words | counts | finite, max_size=3),
    tuple[str, ...]: st.lists(words, max_size=3).map(tuple),
    dict[str, tuple[int, int]]: cursors,
    dict[str, tuple[int, ...]]: st.dictionaries(words, numbers, max_size=3),
    dict[str, tuple[int, bytes]]: st.dictionaries(words, st.tuples(counts, columns), max_size=3),
}
"""Every type of field; there are no integers past 64 bits in msgpack."""


@st.composite
def points(draw: st.DrawFn) -> Points:
    digests = draw(st.lists(st.binary(min_size=8, max_size=8), max_size=3))
    seqs = tuple(range(len(digests)))
    return Points(draw(counts), seqs, b"".join(digests), bytes(16) * len(seqs))


def any_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{field.name: BY_TYPE[field.type] for field in msgspec.structs.fields(kind)})


BY_TYPE[tuple[tuple[int, ...], ...]] = st.lists(numbers, max_size=2).map(tuple)
BY_TYPE[tuple[int, ...]] = numbers
BY_TYPE[tuple[int, ...] | None] = st.none() | numbers
BY_TYPE[tuple[int, int] | None] = st.none() | st.tuples(counts, counts)
BY_TYPE[dict[str, int]] = st.dictionaries(words, counts, max_size=3)
BY_TYPE[KvBlocks] = any_of(KvBlocks)
BY_TYPE[PrefillReport | None] = st.none() | any_of(PrefillReport)
BY_TYPE[DecisionCounts | msgspec.UnsetType] = st.just(msgspec.UNSET) | any_of(DecisionCounts)
BY_TYPE[int | msgspec.UnsetType] = st.just(msgspec.UNSET) | st.integers(-(2**40), 2**40)
BY_TYPE[bool | msgspec.UnsetType] = st.just(msgspec.UNSET) | st.booleans()
BY_TYPE[PoolAccess | msgspec.UnsetType] = st.just(msgspec.UNSET) | any_of(PoolAccess)
_numbers = st.lists(st.integers(0, 2**40), max_size=4).map(tuple)
BY_TYPE[tuple[int, ...] | msgspec.UnsetType] = st.just(msgspec.UNSET) | _numbers
BY_TYPE[tuple[tuple[int, ...], ...] | msgspec.UnsetType] = st.just(msgspec.UNSET) | st.lists(_numbers, max_size=3).map(
    tuple
)
BY_TYPE[str | msgspec.UnsetType] = st.just(msgspec.UNSET) | words
BY_TYPE[tuple[Adapter, ...] | msgspec.UnsetType] = st.just(msgspec.UNSET) | st.lists(any_of(Adapter), max_size=2).map(
    tuple
)
BY_TYPE[FetchAddress | msgspec.UnsetType] = st.just(msgspec.UNSET) | any_of(FetchAddress)
BY_TYPE[PrefixFetch | msgspec.UnsetType] = st.just(msgspec.UNSET) | any_of(PrefixFetch)
BY_TYPE[dict[str, tuple[int, int]] | msgspec.UnsetType] = st.just(msgspec.UNSET) | cursors
constants = st.sampled_from([(), (0,), (0, 0), (1, 1), (0, 1)])
alike = st.builds(Columns, *[constants] * 9, wait_us=st.none() | constants)
BY_TYPE[Columns | dict[str, tuple[int, ...]]] = BY_TYPE[dict[str, tuple[int, ...]]] | any_of(Columns) | alike
for row in (DemandCell, HitRate, JudgedWorkers, ScaleCandidate):
    BY_TYPE[tuple[row, ...]] = st.lists(any_of(row), max_size=3).map(tuple)  # type: ignore[valid-type]
BY_TYPE[ScaleForecast] = any_of(ScaleForecast)
BY_TYPE[ScaleJudgement | msgspec.UnsetType] = st.just(msgspec.UNSET) | any_of(ScaleJudgement)
BY_TYPE[PrefillDemand | msgspec.UnsetType] = st.just(msgspec.UNSET) | any_of(PrefillDemand)
thirds = st.tuples(counts, counts, counts)
BY_TYPE[tuple[int, int, int] | msgspec.UnsetType] = st.just(msgspec.UNSET) | thirds
BY_TYPE[tuple[int, ...] | msgspec.UnsetType] = st.just(msgspec.UNSET) | thirds
BY_TYPE[dict[str, Points]] = st.dictionaries(words, points(), max_size=2)


@st.composite
def restatements(draw: st.DrawFn) -> ReplicaRestated:
    ids = draw(st.lists(st.binary(min_size=8, max_size=8), max_size=4))
    places = tuple(range(len(ids)))
    names = tuple(map(str, places))
    workers = b"".join(ids)
    return ReplicaRestated(
        requests=names, attempts=places, models=names, workers=workers, blocks=places, prefill_tokens=places,
        begins_us=draw(st.sampled_from([(), places])),
        counts=draw(BY_TYPE[DecisionCounts | msgspec.UnsetType]),
    )  # fmt: skip


blocks = st.lists(st.tuples(st.integers(0, 15), st.integers(1, 16)), max_size=4).map(
    lambda pieces: packed(
        Piece(b"12345678", place, bytes(8 * min(size, SPAN_BLOCKS - place))) for place, size in pieces
    )
)


@st.composite
def of_blocks(draw: st.DrawFn, kind: type[Event]) -> Any:
    others = {field.name: BY_TYPE[field.type] for field in msgspec.structs.fields(kind) if field.name != "v"}
    said: dict[str, Any] = draw(blocks)._asdict() if draw(st.booleans()) else {"hashes": draw(columns)}
    unsaid = others.keys() - {"hashes", "pieces", "heads"}
    return kind(**said, **{name: draw(others[name]) for name in sorted(unsaid)})


@st.composite
def bases(draw: st.DrawFn) -> PromptBase:
    blocks = draw(st.integers(1, 5000))
    places, column = draw(st.tuples(counts, counts, counts, counts)), draw(st.binary(min_size=16, max_size=16))
    return PromptBase(places[0], places[1], blocks, places[2], places[3], bytes(8 * len(known_depths(blocks))), column)


def decisions() -> st.SearchStrategy[Event]:
    """Whole ones, and ones that continue another, in all versions."""
    found = [field for field in msgspec.structs.fields(RequestRouted) if field.name not in {"v", "base"}]
    fields = {field.name: BY_TYPE[field.type] for field in found}
    whole = st.builds(RequestRouted, v=st.sampled_from([1, 3, 4]), **fields)
    return whole | st.builds(RequestRouted, v=st.sampled_from([2, 3, 4]), base=bases(), **fields)


def events_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    if kind is ReplicaRestated:
        return restatements()
    if kind is RequestRouted:
        return decisions()
    if issubclass(kind, BlocksEvent):
        return of_blocks(kind)
    fields = {field.name: BY_TYPE[field.type] for field in msgspec.structs.fields(kind) if field.name != "v"}
    if kind is RequestFinished:  # version 1 has no stages
        v1 = st.builds(kind, v=st.just(1), **{name: each for name, each in fields.items() if name != "stages"})
        return v1 | st.builds(kind, v=st.just(PROGRESS_VERSION), **fields)
    versions = [1, PROGRESS_VERSION] if kind is RequestPrefilled else [1]
    return st.builds(kind, v=st.sampled_from(versions), **fields)


any_event = st.one_of([events_of(kind) for kind in EVENT_TYPES.values()])


def sealed(*events: bytes) -> bytes:
    return encode_message(SOURCE, 3, bytes(16), 5, events)


@settings(deadline=None, max_examples=150)
@given(st.lists(any_event, max_size=4), counts, st.binary(min_size=16, max_size=16), counts)
def test_a_message_reads_back_as_what_was_sealed(events: list[Event], n: int, prev: bytes, sent_ms: int) -> None:
    """decode(encode(message)) == message, for every type of event."""
    message = decode_message(encode_message(SOURCE, n, prev, sent_ms, list(map(encode_event, events))))
    assert (message.source, message.n, message.prev, message.sent_ms) == (SOURCE, n, prev, sent_ms)
    assert message.events == tuple(events)


def test_the_table_of_types_holds_the_whole_union() -> None:
    """Whatever may stand in a message can be read by its name."""
    assert set(EVENT_TYPES.values()) == set(get_args(Event))
    assert all(name == kind.__name__ for name, kind in EVENT_TYPES.items())


def test_unknown_fields_are_passed_over() -> None:
    """A newer writer may add fields to messages and events; an older one may leave out those with defaults."""
    event = pack({"type": "WorkerLeft", "reason": "done", "added_later": [1, {"a": None}]})
    fields = {"v": 1, "source": SOURCE, "n": 0, "prev": b"", "sent_ms": 0, "added_later": 1}
    message = decode_message(pack({**fields, "events": [msgspec.Raw(event)]}))
    assert message.events == (WorkerLeft(reason="done"),)


@pytest.mark.parametrize("event", [prefilled("r"), finished("r")], ids=["first token", "end"])
def test_fields_with_their_defaults_are_left_out(event: Event) -> None:
    """Earlier programs wrote them: their bytes are the same event, in a journal, too."""
    full = pack({"type": type(event).__name__, **msgspec.structs.asdict(event)})
    assert decode_message(sealed(full)).events == decode_message(sealed(encode_event(event))).events == (event,)
    assert len(encode_event(event)) < len(full) - 10
    assert is_encoding(full, event)
    assert is_encoding(encode_event(event), event)
    assert not any(is_encoding(other, event) for other in (None, b"", full[:-1], encode_event(WorkerLeft(reason="x"))))


REPORT = PrefillReport(
    remote=False, reason="short", uncached_tokens=48, queued=0, workers=1, min_tokens=512, queue_max=4
)


@pytest.mark.parametrize("report", [None, REPORT], ids=["no report", "report"])
def test_first_tokens_and_ends_are_arrays_in_their_latest_version(report: PrefillReport | None) -> None:
    """They differ in nothing but their bytes, under types that earlier programs do not know. None is a decision."""
    old: list[Event] = [replace(prefilled("r"), prefill=report), replace(finished("r"), detail="why")]
    new: list[Event] = [replace(event, v=PROGRESS_VERSION) for event in old]
    encodings = [*map(encode_event, new)]
    assert decode_message(sealed(*encodings)).events == tuple(new)
    assert decode_message(sealed(*map(encode_event, old), *encodings)).events == (*old, *new)
    assert not any(map(is_decision, encodings))
    for encoding, event in zip(encodings, new, strict=True):
        assert [*msgspec.msgpack.decode(encoding)] == ["type", "e"]
        assert msgspec.msgpack.decode(encoding)["type"] not in DECISION_TYPES
        assert len(encoding) < len(encode_event(replace(event, v=1))) - 35
        assert is_encoding(encoding, event)
        assert not is_encoding(encoding, replace(event, v=1))
    fields = [msgspec.msgpack.decode(encoding) for encoding in encodings]
    fields[1]["e"].append([])  # no stages, which are left out
    later = [pack(each | {"e": [*each["e"], "added later"]}) for each in fields]
    assert decode_message(sealed(pack({"type": "MoonRose"}), *later)).events[1:] == tuple(new)


def test_a_map_of_a_later_version_is_unknown_beside_arrays() -> None:
    """Version 2 of a first token or an end is no map."""
    for event in (prefilled("r"), finished("r")):
        fields = msgspec.msgpack.decode(encode_event(event)) | {"v": PROGRESS_VERSION}
        array = replace(event, v=PROGRESS_VERSION)
        message = decode_message(sealed(pack(fields), encode_event(array)))
        assert message.events == (UnknownEvent(name=type(event).__name__, fields=fields), array)


def test_what_this_program_does_not_know_is_kept() -> None:
    """Unknown types and newer versions become UnknownEvent with their fields; their neighbours stay what they are."""
    strange = {"type": "MoonRose", "v": 3, "at": [1, 2]}
    newer = {"type": "WorkerLeft", "v": EVENT_VERSION + 1, "reason": 7}
    left = WorkerLeft(reason="done")
    message = decode_message(sealed(pack(strange), encode_event(left), pack(newer)))
    unknown = UnknownEvent(name="MoonRose", fields=strange)
    assert message.events == (unknown, left, UnknownEvent(name="WorkerLeft", fields=newer))


def test_a_decision_has_a_base_in_version_2_alone() -> None:
    """So no program takes the hashes behind a base for all of them."""
    with pytest.raises(ValueError, match="version 1"):
        replace(routed("r", "a" * 16), base=PromptBase(1, 0, 1, 1, 0, bytes(8), bytes(16)))
    with pytest.raises(ValueError, match="version 2"):
        replace(routed("r", "a" * 16), v=2)
    with pytest.raises(ValueError, match="0 blocks"):
        PromptBase(1, 0, 0, 1, 0, b"", bytes(16))


COMPACT = replace(
    routed("r", "a" * 16),
    v=3,
    candidates=bytes(range(16)),
    columns=Columns(*[(3, 70_000), *[(number, 0) for number in range(8)], (7, 8)]),
    cursor={"load": (1_700_000_000_000, 7)},
    base=PromptBase(1, 0, 1, 1, 0, bytes(8), bytes(16)),
)


SHORT = replace(
    COMPACT,
    v=4,
    columns=Columns((3, 70_000), (5, 0), (5, 0), (0, 0), (1, 2), (3, 4), (5, 6), (0, 0), (1, 1), (7, 8)),
    cursor={name: (1_700_000_000_000 - place, place) for place, name in enumerate(("jobs", "kv_0", "load", "routing"))},
)
"""It leaves out all that version 4 may leave out."""


def test_a_short_decision_is_the_same_event() -> None:
    """Version 4 leaves out the names of streams and the values of columns that its reader knows, and no others."""
    before = replace(SHORT, v=3)
    encodings = [encode_event(event) for event in (before, SHORT, replace(SHORT, base=msgspec.UNSET))]
    message = decode_message(sealed(*encodings))
    assert message.events == (before, SHORT, replace(SHORT, base=msgspec.UNSET))
    for event in message.events:
        assert isinstance(event, RequestRouted)
        assert [*event.cursor.items()] == [*SHORT.cursor.items()]
        assert isinstance(event.columns, Columns)
        assert [*event.columns.items()] == [*SHORT.columns.items()]
    assert len(encodings[1]) < len(encodings[0]) - 35
    assert all(map(is_decision, encodings))
    fields = msgspec.msgpack.decode(encodings[1])
    assert ([*fields], fields["type"] in DECISION_TYPES) == (["type", "d"], True)
    assert [[3, 70_000], [5, 0], None, None, [1, 2], [3, 4], [5, 6], None, None, [7, 8]] in fields["d"]


@pytest.mark.parametrize(
    ("column", "values"),
    [("overlap_all", (5, 3)), ("pending", (0, 2)), ("waiting", (0, 2)), ("known", (1, 0)), ("wait_us", (0, 0))],
)
def test_a_column_that_is_usual_for_the_best_candidate_alone_is_written(column: str, values: tuple[int, ...]) -> None:
    """Waits of 0 are written, too: without a column, the policy estimates none."""
    assert isinstance(SHORT.columns, Columns)
    event = replace(SHORT, columns=replace(SHORT.columns, **{column: values}))
    (found,) = decode_message(sealed(encode_event(event))).events
    assert isinstance(found, RequestRouted)
    assert found.columns[column] == values
    assert found == event


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["routing"],
        ["load"],
        ["kv_0", "load", "routing"],
        ["jobs", "load", "routing"],
        ["jobs", "kv_1", "load", "routing"],
        ["jobs", "kv_0", "load", "routing"],
        ["jobs", "kv_0", "kv_2", "load", "routing"],
        [*stream_names(15)],
        [*stream_names(15)][::-1],
    ],
    ids=lambda names: ",".join(names)[:30],
)
def test_a_cursor_is_the_same_with_or_without_names(names: list[str]) -> None:
    """It comes back in the order of the names."""
    epochs = [1_700_000_000_000, 0, 1_700_000_000_001, 2**63, 5]
    event = replace(SHORT, cursor={name: (epochs[place % 5], place) for place, name in enumerate(names)})
    encoding = encode_event(event)
    (found,) = decode_message(sealed(encoding)).events
    assert found == event
    assert isinstance(found, RequestRouted)
    if names == sorted(names):
        assert [*found.cursor.items()] == [*event.cursor.items()]
    usual = {(), ("routing",), ("kv_0", "load", "routing"), ("jobs", "kv_0", "load", "routing"), stream_names(15)}
    assert (b"load" in encoding or b"kv_" in encoding) == ((*names,) not in usual)


def test_streams_of_a_log_stand_in_the_order_of_cursors() -> None:
    """As text: kv_10 comes before kv_2."""
    assert [stream_names(number) for number in range(5)] == [
        (), ("routing",), ("load", "routing"), ("kv_0", "load", "routing"), ("jobs", "kv_0", "load", "routing")
    ]  # fmt: skip
    assert stream_names(14) == (
        "jobs", "kv_0", "kv_1", "kv_10", *[f"kv_{number}" for number in range(2, 10)], "load", "routing"
    )  # fmt: skip
    for partitions in (1, 2, 11):
        folded = [name for name in Topology(kv_partitions=partitions).names() if name != SNAPSHOTS]
        assert stream_names(len(folded)) == tuple(sorted(folded))


def test_a_turn_of_a_talk_takes_800_bytes() -> None:
    """A decision that continues another, with eight candidates, its first token and its end: in one, two
    and three messages, without the hashes of new blocks."""
    first = RequestPrefilled(request="2a40bcb50e73a4c6", attempt=0, cached_tokens=27_000, ttft_ms=350)
    end = RequestFinished(
        request=first.request, attempt=0, outcome="stop", prompt_tokens=30_000, output_tokens=200,
        cached_tokens=27_000, ttft_ms=350, duration_ms=9_000,
    )  # fmt: skip
    eight = range(8)
    decision = RequestRouted(
        request=first.request, attempt=0, model="tiny", prompt_tokens=30_000, block_size=64, hashes=b"", policy="kv",
        settings_revision=1, decide_version=1, seed=2**63 + 1, now_ms=1_790_000_000_000,
        cursor={name: (1_789_000_000_000 + 40 * place, 70_000) for place, name in enumerate(stream_names(4))},
        worker="00" * 8, candidates=bytes(64),
        columns=Columns(
            tuple(40_000 + each for each in eight), (422, *[12] * 7), (422, *[12] * 7), (0,) * 8,
            tuple(30_000 + each for each in eight), tuple(460 + each for each in eight), (3,) * 8, (0,) * 8, (1,) * 8,
        ),
        candidates_total=8, excluded={}, blocks=469, prefill_tokens=3_000, predicted_cached_tokens=27_000,
        digest="d1a109e0f651cd97", base=PromptBase(
            70_000, 0, 422, 69_000, 90_000, bytes(8 * len(known_depths(422))), bytes(16)
        ), v=3,
    )  # fmt: skip
    before = [encode_event(event) for event in (decision, first, end)]
    latest = [encode_event(replace(event, v=v)) for event, v in ((decision, 4), (first, 2), (end, 2))]

    def sizes(events: list[bytes]) -> list[int]:
        cuts = [[events], [events[:1], events[1:]], [[each] for each in events]]
        return [sum(len(encode_message(SOURCE, 5_000, bytes(16), 2**40, part)) for part in cut) for cut in cuts]

    assert sizes(before) == [833, 914, 995]
    assert sizes(latest) == [635, 716, 797]


def test_a_compact_decision_is_the_same_event() -> None:
    """Version 3 differs in nothing but its bytes: fewer than half as many, under a type that others do not know."""
    continued, whole = replace(COMPACT, v=2), replace(COMPACT, v=1, base=msgspec.UNSET)
    encodings = [encode_event(event) for event in (continued, replace(whole, v=3), whole, COMPACT)]
    message = decode_message(sealed(*encodings))
    assert message.events == (continued, replace(whole, v=3), whole, COMPACT)
    assert len(encodings[3]) < len(encodings[0]) / 2
    assert all(map(is_decision, encodings))
    fields = msgspec.msgpack.decode(encodings[3])
    assert [*fields] == ["type", "d"]
    assert {fields["type"], RequestRouted.__name__} < DECISION_TYPES
    assert [event.columns["wait_us"] for event in message.events if isinstance(event, RequestRouted)] == [(7, 8)] * 4


@pytest.fixture(params=[COMPACT, SHORT], ids=["version 3", "version 4"])
def compact(request: pytest.FixtureRequest) -> RequestRouted:
    return request.param  # type: ignore[no-any-return]


def test_a_compact_decision_beside_unknown_events(compact: RequestRouted) -> None:
    """It is read where the events of a message are looked at one by one, and further values are passed over."""
    fields = msgspec.msgpack.decode(encode_event(replace(compact, load_time=(1, 2, 3))))
    later = pack(fields | {"d": [*fields["d"][:-1], None, "added later"]})
    assert decode_message(sealed(later)).events == (compact,)
    message = decode_message(sealed(pack({"type": "MoonRose"}), encode_event(compact), later))
    assert message.events[1:] == (compact, compact)


@pytest.mark.parametrize("version", range(3, ROUTED_VERSION + 2))
def test_a_later_version_as_a_map_is_unknown(version: int) -> None:
    """As it is for earlier programs: the map ends with version 2."""
    fields = msgspec.msgpack.decode(encode_event(replace(COMPACT, v=2)))
    (event,) = decode_message(sealed(pack(fields | {"v": version}))).events
    assert isinstance(event, UnknownEvent)


def test_a_damaged_compact_decision_raises_nothing_but_corrupt(compact: RequestRouted) -> None:
    """Every cut and every flipped bit, in a message with the right frame; a cut never gives a decision."""
    encoding = encode_event(compact)
    for end in range(len(encoding)):
        with pytest.raises(Corrupt):
            decode_message(sealed(encoding[:end]))
    for place in range(len(encoding)):
        for bit in range(8):
            damaged = bytearray(encoding)
            damaged[place] ^= 1 << bit
            try:
                found = decode_message(sealed(bytes(damaged))).events
            except Corrupt:
                continue
            again = decode_message(sealed(*[encode_event(each) for each in found if isinstance(each, RequestRouted)]))
            assert again.events == tuple(each for each in found if isinstance(each, RequestRouted))


@pytest.mark.parametrize(
    "damage",
    [
        lambda values: values[:-2],
        lambda values: [*values[:-1], "no base"],
        lambda values: {"request": "r"},
        lambda values: [7, *values[1:]],
        lambda values: [[(1,)] * 8 if type(value) is list and len(value) == 10 else value for value in values],
    ],
    ids=["too few values", "no base", "no array", "no text", "too few columns"],
)
def test_a_compact_decision_of_another_shape_is_corrupt(
    compact: RequestRouted, damage: Callable[[list[Any]], object]
) -> None:
    """Too few values or columns, or values of other types."""
    fields = msgspec.msgpack.decode(encode_event(compact))
    with pytest.raises(Corrupt):
        decode_message(sealed(pack(fields | {"d": damage(fields["d"])})))


@pytest.mark.parametrize("cursor", [[1, 2, 3, 4], [[1, 2], [3]], [[1, 2], [3, "x"]], "load"], ids=str)
def test_a_cursor_of_another_shape_is_corrupt(cursor: object) -> None:
    """No places, or other values."""
    fields = msgspec.msgpack.decode(encode_event(SHORT))
    place = fields["d"].index([[1_700_000_000_000 - place, place] for place in range(4)])
    with pytest.raises(Corrupt):
        decode_message(sealed(pack(fields | {"d": [*fields["d"][:place], cursor, *fields["d"][place + 1 :]]})))


def test_columns_are_read_like_a_dictionary() -> None:
    """So readers need not know which version a decision has."""
    timed = COMPACT.columns
    assert isinstance(timed, Columns)
    plain, priced = replace(timed, wait_us=None), replace(timed, reuse=(0, 5))
    pushed = replace(timed, turnover=(0, 6))
    names_of = (
        (timed, (*COLUMNS, "wait_us")),
        (plain, COLUMNS),
        (priced, (*COLUMNS, "wait_us", "reuse")),
        (pushed, (*COLUMNS, "wait_us", "turnover")),
        (replace(priced, turnover=(0, 6)), (*COLUMNS, *TIMED_COLUMNS)),
    )
    for columns, names in names_of:
        assert (tuple(columns), columns.keys(), len(columns)) == (names, names, len(names))
        assert dict(columns) == columns == {**columns}
        assert [*columns.values()] == [column for _, column in columns.items()] == [columns[name] for name in names]
    assert ("wait_us" in timed, "wait_us" in plain, "get" in plain) == (True, False, False)
    assert (plain.get("wait_us", ()), plain.get("keys")) == ((), None)
    assert timed != plain != {}
    with pytest.raises(KeyError):
        plain["wait_us"]


@pytest.mark.parametrize("event", [COMPACT, SHORT], ids=["version 3", "version 4"])
@pytest.mark.parametrize("more", [{}, {"reuse": (0, 5)}, {"overlap_host": (1, 2), "overlap_disk": (3, 4)}], ids=str)
def test_the_column_of_turnover_comes_back(event: RequestRouted, more: dict[str, tuple[int, ...]]) -> None:
    """It is the last value of the columns. A decision without it has the bytes of programs that knew none."""
    assert isinstance(event.columns, Columns)
    plain = replace(event, columns=replace(event.columns, **more))
    pushed = replace(event, columns=replace(event.columns, **more, turnover=(0, 64)))
    message = decode_message(sealed(*map(encode_event, (plain, pushed))))
    assert message.events == (plain, pushed)
    values = msgspec.msgpack.decode(encode_event(pushed))["d"]
    at = next(at for at, each in enumerate(values) if type(each) is list and each and each[-1] == [0, 64])
    earlier = msgspec.msgpack.decode(encode_event(plain))["d"][at]
    assert values[at] == [*earlier, *[None] * (len(values[at]) - 1 - len(earlier)), [0, 64]]
    assert len(values[at]) == len(Columns.__struct_fields__)


def test_a_newer_version_of_a_shape_that_fits_is_unknown_too() -> None:
    """The version decides, not whether the bytes happen to fit."""
    message = decode_message(sealed(encode_event(WorkerLeft(reason="done", v=EVENT_VERSION + 1))))
    assert [type(event) for event in message.events] == [UnknownEvent]


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200))
@example(b"")
@example(pack([]))
@example(pack({"source": 1}))
@example(b"\x81\xa6source\xa2\xff\xfe")
@example(b"\x81\xa6events" + b"\x91" * 100_000)
def test_bytes_that_are_no_message_are_corrupt(payload: bytes) -> None:
    """Whatever the bytes are, decoding them raises Corrupt and nothing else."""
    with pytest.raises(Corrupt):
        decode_message(payload)


@settings(deadline=None, max_examples=300)
@given(any_event, st.data())
def test_a_damaged_message_is_corrupt_or_still_a_message(event: Event, data: st.DataObject) -> None:
    """A flipped byte or a cut never raises anything but Corrupt."""
    payload = bytearray(sealed(encode_event(event)))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    for damaged in (bytes(payload), bytes(payload[:at])):
        try:
            decode_message(damaged)
        except Corrupt:
            continue


@pytest.mark.parametrize(
    "event",
    [
        {"type": "BlocksStored", "hashes": b"seven b"},
        {"type": "BlocksRemoved", "hashes": b"1"},
        {"type": "CacheRestated", "part": 0, "parts": 1, "hashes": b"1"},
        {"type": "BlocksStored", "hashes": bytes(16), "pieces": b"\x00"},
        {"type": "BlocksStored", "hashes": bytes(16), "pieces": b"\xf1", "heads": bytes(8)},
        {"type": "BlocksStored", "hashes": bytes(16), "pieces": b"\x11"},
        {"type": "BlocksRemoved", "hashes": bytes(16), "pieces": b"\x01", "heads": bytes(8)},
        {"type": "CacheRestated", "part": 0, "parts": 1, "hashes": b"", "heads": bytes(8)},
        {
            "type": "ReplicaRestated",
            "requests": ["a"],
            "attempts": [0],
            "models": ["m"],
            "workers": bytes(16),
            "blocks": [1],
            "prefill_tokens": [0],
        },
        {"type": "WorkerLeft"},
        {"type": "WorkerLeft", "reason": b"\xff"},
        {"v": 1},
    ],
)
def test_an_event_that_cannot_be_folded_is_corrupt(event: dict[str, object]) -> None:
    """Columns that do not hold whole numbers, or do not fit together, are found when read, not when folded."""
    with pytest.raises(Corrupt):
        decode_message(sealed(pack(event)))


def test_a_column_is_checked_by_its_writer_too() -> None:
    """A program error does not reach the log."""
    with pytest.raises(ValueError, match="7 bytes"):
        BlocksStored(hashes=b"seven b")


def test_each_message_names_the_one_before() -> None:
    """`prev` is the keyed digest of the message before: who changes one, or has no key, breaks the chain after it."""
    key, other = bytes(32), bytes(31) + b"1"
    payloads, head = [], CHAIN_START
    for n in range(4):
        payloads.append(encode_message(SOURCE, n, head, 0, [encode_event(WorkerLeft(reason=str(n)))]))
        head = digest(payloads[-1], key)
    assert all(decode_message(after).prev == digest(before, key) for before, after in pairwise(payloads))
    assert digest(payloads[0], other) != digest(payloads[0], key)
    assert digest(payloads[0][:-1] + b"x", key) != digest(payloads[0], key)


@given(st.lists(st.one_of([events_of(kind) for kind in READABLE]), min_size=1, max_size=3), counts)
def test_events_of_low_rate_are_json_that_a_person_can_read(events: list[Event], n: int) -> None:
    """The same message comes back from JSON as from msgpack, and any JSON reader sees types and fields."""
    payload = encode_readable(SOURCE, n, bytes(16), 5, events)
    assert decode_message(payload) == decode_message(
        encode_message(SOURCE, n, bytes(16), 5, list(map(encode_event, events)))
    )
    assert [each["type"] for each in json.loads(payload)["events"]] == [type(event).__name__ for event in events]


def test_json_of_a_later_program_is_kept() -> None:
    """Unknown types and newer versions in JSON become UnknownEvent too; broken JSON is Corrupt."""
    payload = encode_readable(SOURCE, 0, bytes(16), 5, [WorkerLeft(reason="x"), WorkerLeft(reason="y", v=9)])
    strange = payload.replace(b"WorkerLeft", b"WorkerWept", 1)
    assert [type(event) for event in decode_message(strange).events] == [UnknownEvent, UnknownEvent]
    with pytest.raises(Corrupt):
        decode_message(payload[:-3])
