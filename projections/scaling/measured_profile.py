"""MeasuredProfile: the speed of one engine as `contrail profile` measured it, and the file that holds it.

1. `prefill` has the duration of a prompt by its tokens, alone in the engine. `decode` has that of a decode step, by the
   number of requests and the tokens that each of them holds.
2. Between two points a duration lies on their line, in whole microseconds (`projections.scaling.queue_model`).
3. Durations never fall with tokens or requests, so that noise cannot make more work faster, and predictions fall with
   the demand: each becomes the mean of the longest one of less work and the shortest one of more work.
4. A step that did not fit into the cache, or into the time of the measurement, takes the duration of the same requests
   with fewer tokens, and more by that of fewer requests: in proportion to the requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated

import msgspec
import xxhash
from msgspec import Meta

from core.errors import CallerError
from core.events.scale import MEASURED, CapacityLearned

FORMAT = "contrail-profile"
VERSION = 1
BYTES_MAX = 1 << 20
"""A longer file is no profile."""
POINTS_MAX = 4096
"""Points of a table, at most."""

Tokens = Annotated[int, Meta(ge=1, le=1 << 40)]
Micros = Annotated[int, Meta(ge=1, le=1 << 50)]
Count = Annotated[int, Meta(ge=0, le=1 << 20)]


class PrefillPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt of so many tokens, none of them cached, in an engine without other requests."""

    tokens: Tokens
    us: Micros
    """The median time from its first pass to its first token …"""
    repeats: Count
    """… of so many prompts."""


class DecodePoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps in which so many requests get a token each."""

    requests: Annotated[int, Meta(ge=1, le=1 << 20)]
    tokens: Tokens
    """Of each request in the cache, in the middle of the measurement."""
    us: Micros
    """The median time between two tokens …"""
    repeats: Count
    """… of so many steps."""


class MeasuredProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See the module's text. The fields stand in the file as they stand here."""

    format: str = FORMAT
    version: int = VERSION
    engine: str
    """Name and version."""
    model: str
    """The name that clients ask for."""
    block_size: int
    measured: str
    """The time of the measurement: 2026-11-29T20:00:00Z."""
    seconds: float
    """The time that it took."""
    room_tokens: Count
    """Tokens that the engine's cache holds; 0 if that is unknown."""
    slots: Count
    """Requests that the engine runs at once; 0 if that is unknown."""
    prefill: Annotated[tuple[PrefillPoint, ...], Meta(min_length=1, max_length=POINTS_MAX)]
    decode: Annotated[tuple[DecodePoint, ...], Meta(min_length=1, max_length=POINTS_MAX)]
    """Those of one request, and at least one point of each further number."""

    @staticmethod
    def decode_file(content: bytes, name: str) -> MeasuredProfile:
        """The profile in a file of that name. CallerError if it is none, or of a later version."""
        try:
            head = msgspec.json.decode(content, type=_Head)
            if head.format != FORMAT:
                raise CallerError(f"{name} is no profile of an engine: `contrail profile` writes one")
            if head.version != VERSION:
                raise CallerError(f"{name} is a profile of version {head.version}: this Contrail reads {VERSION}")
            found = msgspec.json.decode(content, type=MeasuredProfile)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CallerError(f"{name} is no profile of an engine: {error}") from error
        if not any(point.requests == 1 for point in found.decode):
            raise CallerError(f"{name} is no profile of an engine: it has no decode step of one request")
        return found

    def encode(self) -> bytes:
        """The file's content, which `decode_file` reads again."""
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"

    @property
    def digest(self) -> str:
        """Names the content: a profile that was measured again has another one."""
        return xxhash.xxh3_64_hexdigest(self.encode())

    def capacity(self, devices: int = 1) -> CapacityLearned:
        """The speed of a worker with so many devices as an event, without a start-up time. A prompt that is longer than
        the longest measured one is computed in several passes of that length."""
        durations = {point.tokens: point.us for point in self.prefill}
        places = sorted(durations)
        lengths, (durations_us,) = _from_one(places, rising([[durations[place] for place in places]]))
        requests, tokens, rows_us = self._decode_table()
        most = max(point.requests * point.tokens for point in self.decode)
        return CapacityLearned(
            at_ms=0,
            pass_tokens=lengths[-1],
            prefill_tokens=lengths,
            prefill_us=durations_us,
            decode_tokens=tokens,
            decode_us=rows_us[0],
            room_tokens=self.room_tokens or most,
            startup_ms=0,
            starts=0,
            hits=(),
            slots=self.slots,
            devices=devices,
            origin=MEASURED,
            decode_requests=requests,
            decode_rows_us=rows_us,
            profile=self.digest,
        )

    def _decode_table(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """The requests, the tokens of each, and of each number of requests a row over these tokens: whole, and rising
        in both directions. The tokens are those that one request was measured with."""
        found = {(point.requests, point.tokens): point.us for point in self.decode}
        requests = sorted({point.requests for point in self.decode})
        tokens = sorted(each for number, each in found if number == 1)
        rows: list[list[int]] = []
        for place, number in enumerate(requests):
            row: list[int] = []
            for column, each in enumerate(tokens):
                us = found.get((number, each))
                if us is None:  # only of several requests: the row above is whole
                    above, fewer = rows[-1], requests[place - 1]
                    more_us = max(0, above[column] - above[column - 1]) * number // fewer if column else 0
                    us = row[-1] + more_us if row else above[column]
                row.append(us)
            rows.append(row)
        return (tuple(requests), *_from_one(tokens, rising(rows)))


class _Head(msgspec.Struct, frozen=True):
    format: str = ""
    version: int = 0


Row = Sequence[int]


def rising(rows: Sequence[Row]) -> list[Row]:
    """The same numbers where they rise along rows and columns. Elsewhere each becomes the mean of the highest one
    before it and the lowest one behind it, so that they rise, too."""
    highest = _highest(rows)
    lowest = [[-each for each in row[::-1]] for row in _highest([[-each for each in row[::-1]] for row in rows[::-1]])]
    return [
        [(high + low) // 2 for high, low in zip(*both, strict=True)] for both in zip(highest, lowest[::-1], strict=True)
    ]


def _highest(rows: Sequence[Row]) -> list[Row]:
    """At each place, the highest number of the rows up to it, in the columns up to it."""
    found: list[Row] = []
    for row in rows:
        before = found[-1] if found else row
        found.append(list(accumulate((max(both) for both in zip(row, before, strict=True)), max)))
    return found


def _from_one(places: Row, rows: Sequence[Row]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """The same from one token on: fewer tokens take no less than the fewest that were measured."""
    if places[0] == 1:
        return tuple(places), tuple(map(tuple, rows))
    return (1, *places), tuple((row[0], *row) for row in rows)
