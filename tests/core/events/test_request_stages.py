"""The stages of a request in its record: what they cost there, who reads them, and what they add up to."""

from __future__ import annotations

import msgspec

from core.codec import decode_message, encode_event, encode_message
from core.event_json import message_lines
from core.events import RequestFinished
from core.events.request_stages import UNREPORTED, RequestStages
from core.events.routing import PROGRESS_VERSION
from core.ids import SourceId, StreamName, StreamSeq

STAGES = RequestStages(
    loop=40, body=3, prepare=120, queued=20_000, held=3_000, route=8, link=11, behind=900, prefill=4_000,
    decode=60_000,
)  # fmt: skip
ENDED = RequestFinished(
    request="r1", attempt=0, outcome="stop", prompt_tokens=30_000, output_tokens=200, cached_tokens=27_000,
    ttft_ms=2_800, duration_ms=8_800, v=PROGRESS_VERSION, stages=STAGES,
)  # fmt: skip


class EarlierFinished(msgspec.Struct, frozen=True, array_like=True):
    """`RequestFinished` of programs before the stages, by its order on the wire."""

    request: str
    attempt: int
    outcome: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    ttft_ms: int
    duration_ms: int
    detail: str = ""
    v: int = 1


def sealed(event: RequestFinished) -> bytes:
    return encode_message(SourceId("replica"), 3, bytes(16), 5, [encode_event(event)])


def test_the_stages_take_at_most_40_bytes_of_the_log() -> None:
    """A slow request, and one with every stage as long as three bytes hold."""
    without = len(encode_event(msgspec.structs.replace(ENDED, stages=())))
    assert len(encode_event(ENDED)) - without == 22
    longest = tuple([65_535] * len(RequestStages._fields))
    assert len(encode_event(msgspec.structs.replace(ENDED, stages=longest))) - without == 34


def test_an_earlier_program_reads_the_record_without_them() -> None:
    """They stand behind the version, the last value that it reads."""
    values = msgspec.msgpack.decode(encode_event(ENDED))["e"]
    earlier = msgspec.convert(values, EarlierFinished)
    assert (earlier.duration_ms, earlier.detail, earlier.v) == (8_800, "", PROGRESS_VERSION)


def test_a_record_of_an_earlier_program_has_none() -> None:
    """Neither its array nor its map."""
    values = msgspec.msgpack.decode(encode_event(ENDED))["e"][:-1]
    raw = msgspec.msgpack.encode({"type": "End2", "e": values})
    (event,) = decode_message(encode_message(SourceId("replica"), 3, bytes(16), 5, [raw])).events
    assert event == msgspec.structs.replace(ENDED, stages=())
    assert RequestStages.of(()) is None
    first = msgspec.structs.replace(ENDED, v=1)
    assert b"stages" not in encode_event(first)
    assert decode_message(sealed(first)).events == (msgspec.structs.replace(first, stages=()),)


def test_they_add_up_without_what_was_not_reported() -> None:
    """A later program may add some, which are cut."""
    assert RequestStages.of((*STAGES, 5)) == STAGES
    unreported = STAGES._replace(behind=UNREPORTED, prefill=4_900)
    assert unreported.total == STAGES.total == sum(STAGES)
    assert STAGES.first_token == STAGES.total - 60_000


def test_people_read_milliseconds_by_name() -> None:
    """Those that took time."""
    (line,) = message_lines(StreamName("routing"), StreamSeq(1), 0, decode_message(sealed(ENDED)))
    assert line["stages"] == {
        "loop": 4.0, "body": 0.3, "prepare": 12.0, "queued": 2000.0, "held": 300.0, "route": 0.8, "link": 1.1,
        "behind": 90.0, "prefill": 400.0, "decode": 6000.0,
    }  # fmt: skip
