"""Prompts of a hostile recording: an export's columns are proved by nothing, and its chains may go round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from msgspec.structs import replace

from core.codec import CHAIN_START, encode_event, encode_message
from core.events import PromptBase, RequestRouted
from core.ids import Epoch, SourceId, StreamName, StreamSeq
from core.prompt import column_digest, sampled
from core.subjects import ROUTING, subject
from replay.recording.prompt_columns import BaseFault, PromptColumns
from streams.archive.archive_format import Span
from streams.log import Record
from tests.projections.facts import prompt, routed, worker_id

EPOCH, SOURCE = Epoch(7), SourceId("0123456789abcdef")
PROMPT = prompt(*range(1, 41)).hashes()
OTHER = bytes(len(PROMPT))


def continued(base: int) -> RequestRouted:
    """A decision with the prompt that continues the one of that message, by its record."""
    event = replace(routed("r", worker_id(1), prompt(1)), cursor={ROUTING: (EPOCH, 29)})
    named = PromptBase(base, 0, 40, 1, 0, sampled(PROMPT, 40), column_digest(PROMPT))
    return replace(event, v=2, base=named, hashes=b"")


class ForgedArchive:
    """Messages 10 and 20 continue each other; the export carries another prompt for the second."""

    columns: ClassVar = {(20, 0): OTHER}
    streams = frozenset({ROUTING})

    def at(self, _stream: StreamName, seq: int) -> Record | None:
        return {10: self._record(10, 20), 20: self._record(20, 10)}.get(seq)

    def read(self, _stream: StreamName, _start: int, _end: int) -> Iterator[Record]:
        yield self._record(10, 20)

    def span(self, _stream: StreamName) -> Span:
        return Span(EPOCH, 1, 30, 1)

    def _record(self, seq: int, base: int) -> Record:
        payload = encode_message(SOURCE, 0, CHAIN_START, 1, [encode_event(continued(base))])
        return Record(ROUTING, StreamSeq(seq), 1, subject("n", ROUTING, SOURCE), payload)


def test_a_chain_that_goes_round_is_a_fault() -> None:
    """The walk through it ends."""
    columns = PromptColumns(ForgedArchive())  # type: ignore[arg-type]
    columns.read_up_to(30)
    found = columns.of(30, 0, continued(10))
    assert isinstance(found, BaseFault)
