"""Messages: what was sealed is read back, and nothing that a peer sends does more than raise Corrupt."""

from __future__ import annotations

import json
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
    READABLE,
    decode_message,
    digest,
    encode_event,
    encode_message,
    encode_readable,
)
from core.errors import Corrupt
from core.events import (
    EVENT_TYPES,
    EVENT_VERSION,
    BlocksEvent,
    BlocksStored,
    DecisionCounts,
    Event,
    Points,
    PromptBase,
    ReplicaRestated,
    RequestRouted,
    UnknownEvent,
    WorkerLeft,
)
from core.generation import PrefillReport
from core.ids import SourceId
from core.kv_transfer import KvBlocks
from core.prompt import known_depths
from tests.projections.facts import routed

SOURCE = SourceId("0123456789abcdef")
pack = msgspec.msgpack.Encoder().encode

words = st.text(max_size=8)
counts = st.integers(0, 2**63)
columns = st.lists(st.binary(min_size=8, max_size=8), max_size=5).map(b"".join)
numbers = st.lists(counts, max_size=3).map(tuple)
finite = st.floats(allow_nan=False, allow_infinity=False)
cursors = st.dictionaries(words, st.tuples(counts, counts), max_size=3)
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
BY_TYPE[tuple[int, int] | None] = st.none() | st.tuples(counts, counts)
BY_TYPE[dict[str, int]] = st.dictionaries(words, counts, max_size=3)
BY_TYPE[KvBlocks] = any_of(KvBlocks)
BY_TYPE[PrefillReport | None] = st.none() | any_of(PrefillReport)
BY_TYPE[DecisionCounts | msgspec.UnsetType] = st.just(msgspec.UNSET) | any_of(DecisionCounts)
BY_TYPE[int | msgspec.UnsetType] = st.just(msgspec.UNSET) | st.integers(-(2**40), 2**40)
BY_TYPE[dict[str, tuple[int, int]] | msgspec.UnsetType] = st.just(msgspec.UNSET) | cursors
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
    """Whole ones, and ones that continue another."""
    found = [field for field in msgspec.structs.fields(RequestRouted) if field.name not in {"v", "base"}]
    fields = {field.name: BY_TYPE[field.type] for field in found}
    return st.builds(RequestRouted, **fields) | st.builds(RequestRouted, v=st.just(2), base=bases(), **fields)


def events_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    if kind is ReplicaRestated:
        return restatements()
    if kind is RequestRouted:
        return decisions()
    if issubclass(kind, BlocksEvent):
        return of_blocks(kind)
    fields = {field.name: BY_TYPE[field.type] for field in msgspec.structs.fields(kind) if field.name != "v"}
    return st.builds(kind, **fields)


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
