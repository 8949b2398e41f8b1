"""TraceFile: a file with a trace, and the format that it has: one of ours, or Mooncake's.

A file in Mooncake's format has a JSON object per line, without a word of any prompt:

    {"timestamp": 3000, "input_length": 1400, "output_length": 52, "hash_ids": [0, 7, 8]}

`timestamp` is in ms; `hash_ids` names the prompt's parts of PART_TOKENS tokens, the last one perhaps not full. Equal
ids after equal ids are equal tokens. `tenant`, `session_id` and `priority` may stand there too. Other keys are passed
over. The format is that of github.com/kvcache-ai/Mooncake, FAST25-release/traces.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from core.errors import CallerError
from core.generation import PRIORITY_MAX
from core.ids import RequestId
from core.prompt import HASH_BYTES
from replay.recording.recording import Recording
from replay.simulate.options import WORKERS
from replay.simulate.recorded_requests import RecordedShape, recorded_shape, recorded_trace
from replay.simulate.workload import US_PER_MS, Trace, TraceRequest
from streams.archive.archive_format import MAGIC

PART_TOKENS = 512
"""Tokens that an id stands for."""
LINE_BYTES_MAX = 16 * 1024 * 1024
"""A longer line is no request: of a million tokens it would have some 20 KB."""
TIMESTAMP_MS_MAX = 10 * 365 * 86_400_000
ID_BITS = 64


class _MooncakeLine(msgspec.Struct, gc=False):
    """One line as it must be."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    tenant: str = ""
    session_id: str = ""
    priority: int = 0


_decode = msgspec.json.Decoder(_MooncakeLine).decode


def read_mooncake(path: Path, first: int = 0) -> Trace:
    """The file's requests, the first so many of them if that is given; some 10 us each. CallerError names the line that
    cannot be used."""
    asked: list[TraceRequest] = []
    try:
        with path.open("rb") as lines:
            number = 0
            while (not first or len(asked) < first) and (raw := lines.readline(LINE_BYTES_MAX + 1)):
                number += 1
                if raw.strip():
                    asked.append(_asked(raw, number, f"{path}, line {number}"))
    except OSError as error:
        raise CallerError(f"{path} cannot be read: {error.strerror}") from error
    if not asked:
        raise CallerError(f"{path} has no request: each line must be one in Mooncake's format")
    start_us = min(each.at_us for each in asked)
    return Trace([each._replace(at_us=each.at_us - start_us) for each in asked], block_hashes)


def block_hashes(asked: TraceRequest, block_size: int) -> bytes:
    """A hash for each full block of the prompt, as little-endian uint64; some 1 us per id.

    Of the prefix up to the block's end: that is, of the ids so far and of where in the last one the block ends. So
    equal hash means equal prefix, also where ids stand for their own part alone.
    """
    digest, pieces, before = xxhash.xxh3_64_digest, [], b""
    ends = asked.prompt_tokens // block_size * block_size
    for start in range(0, ends, PART_TOKENS):
        at = start // PART_TOKENS * HASH_BYTES
        before = digest(before + asked.content[at : at + HASH_BYTES])
        first = block_size - start % block_size
        pieces += [digest(before, place) for place in range(first, min(PART_TOKENS, ends - start) + 1, block_size)]
    return b"".join(pieces)


class Vocabulary(NamedTuple):
    """Which token ids a prompt may be made of."""

    vocab: int
    """Ids are below this …"""
    token_min: int = 0
    """… and not below this."""


def token_ids(asked: TraceRequest, words: Vocabulary) -> array[int]:
    """The tokens of a prompt as a live run sends it: a part's tokens are its id, written in as many digits as there are
    words, over and over. So equal ids are equal tokens, and two that differ do so in each of their blocks of at
    least 64 tokens. CallerError if there are fewer than two words.
    """
    base = words.vocab - words.token_min
    if base < 2:
        raise CallerError(
            f"a vocabulary from {words.token_min} to {words.vocab} has fewer than two tokens to tell ids by"
        )
    digits = _digits(base)
    tokens = array("I")
    for id_ in array("Q", asked.content):
        pattern = array("I", [words.token_min + id_ // base**place % base for place in range(digits)])
        tokens += (pattern * (PART_TOKENS // digits + 1))[:PART_TOKENS]
    return tokens[: asked.prompt_tokens]


def _digits(base: int) -> int:
    """Digits that any id can be written in."""
    digits = 1
    while base**digits < 2**ID_BITS:
        digits += 1
    return digits


def _asked(raw: bytes, number: int, where: str) -> TraceRequest:
    if len(raw) > LINE_BYTES_MAX:
        raise CallerError(f"{where}: it is longer than {LINE_BYTES_MAX} bytes, which no request is")
    try:
        line = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CallerError(f"{where}: no request in Mooncake's format: {error}") from error
    _check(line, where)
    return TraceRequest(
        id=RequestId(f"req-{number:06}"),
        at_us=round(line.timestamp * US_PER_MS),
        prompt_tokens=line.input_length,
        output_tokens=max(1, line.output_length),
        content=array("Q", line.hash_ids).tobytes(),
        tenant=line.tenant,
        session=line.session_id,
        priority=line.priority,
    )


def _check(line: _MooncakeLine, where: str) -> None:
    """CallerError if it cannot be."""
    if not 0 <= line.timestamp <= TIMESTAMP_MS_MAX:
        raise CallerError(f"{where}: timestamp {line.timestamp:g} is no number of ms since the trace's start")
    if line.input_length < 1:
        raise CallerError(f"{where}: input_length must be at least 1, not {line.input_length}")
    if line.output_length < 0:
        raise CallerError(f"{where}: output_length must not be negative, but is {line.output_length}")
    if not -PRIORITY_MAX <= line.priority <= PRIORITY_MAX:
        raise CallerError(f"{where}: priority must be from -{PRIORITY_MAX} to {PRIORITY_MAX}, not {line.priority}")
    parts = -(-line.input_length // PART_TOKENS)
    if len(line.hash_ids) != parts:
        raise CallerError(
            f"{where}: {line.input_length} tokens have {parts} parts of {PART_TOKENS}, but hash_ids has "
            f"{len(line.hash_ids)}"
        )
    if not all(0 <= id_ < 2**ID_BITS for id_ in line.hash_ids):
        raise CallerError(f"{where}: hash_ids must be whole numbers from 0 to 2**{ID_BITS} - 1")


AUTO, MOONCAKE, RECORDING = FORMATS = ("auto", "mooncake", "recording")
BLOCK_SIZE = 64
"""Tokens per block where the trace has none: Dynamo's usual ones."""


class TraceFile(NamedTuple):
    """A file, and what of it is wanted."""

    path: Path
    format: str = AUTO
    """Of FORMATS."""
    first: int = 0
    """Requests; 0 for all."""
    model: str = ""
    """In a recording; empty if it has only one."""

    def check(self) -> None:
        """CallerError if a model is named that the format does not have, or the file cannot be read."""
        if self.model and self._named() == MOONCAKE:
            raise CallerError(f"{self.path} is in Mooncake's format, which names no models: leave --model out")

    def read(self) -> Trace:
        """The requests; CallerError or Corrupt says what is wrong with the file."""
        if self._named() == MOONCAKE:
            return read_mooncake(self.path, self.first)
        with Recording.open(self.path) as recording:
            return recorded_trace(recording, self.model, self.first)

    def shape(self) -> RecordedShape:
        """The fleet of a simulation that says no other: that of the recording, or BLOCK_SIZE and WORKERS. CallerError
        or Corrupt if the file cannot be read."""
        found = RecordedShape(0, 0)
        if self._named() != MOONCAKE:
            with Recording.open(self.path) as recording:
                found = recorded_shape(recording, self.model)
        return RecordedShape(found.block_size or BLOCK_SIZE, found.workers or WORKERS)

    def _named(self) -> str:
        assert self.format in FORMATS
        return self.format if self.format != AUTO else _format(self.path)


def _format(path: Path) -> str:
    """A recording begins with its mark."""
    try:
        with path.open("rb") as file:
            return RECORDING if file.read(len(MAGIC)) == MAGIC else MOONCAKE
    except OSError as error:
        raise CallerError(f"{path} cannot be read: {error.strerror}") from error
