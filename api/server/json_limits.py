"""Bounds on JSON from clients, checked before it is decoded: one call of the decoder holds up all other requests."""

from __future__ import annotations

from math import isinf
from typing import Any, TypeVar

import msgspec

from api.server.errors import ApiError

Kind = TypeVar("Kind")

VALUES_MAX = 1_000_000
"""In one body, token ids for instance: so many are decoded in some 40 ms."""
CONTAINERS_MAX = 100_000
"""Objects and lists among them …"""
STRINGS_MAX = 250_000
"""… and strings, where one of the others may be exceeded: to look at each would take too long."""
STRUCTURE_MAX = 1024 * 1024
"""Digits and marks outside strings, where no token ids are expected. Keys and numbers cost more than other values:
15 MiB of numbers with 20 digits took 3 s, 10 MiB of different keys 200 ms; this takes 50 ms at most."""
UNCHECKED_BYTES_MAX = CONTAINERS_MAX
"""Shorter JSON cannot exceed a bound: a container takes two bytes of it."""
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'0123456789,:[]{}"'))


def finite_float(text: str) -> float:
    """The number; ValueError if no float is so large. msgspec itself takes ten times as long for many digits."""
    if isinf(number := float(text)):
        raise ValueError("Number out of range")
    return number


def json_decoder(kind: type[Kind]) -> msgspec.json.Decoder[Kind]:
    """A decoder of JSON from clients."""
    return msgspec.json.Decoder(kind, float_hook=finite_float)


UNTYPED: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=finite_float)


def is_plainly_small(raw: bytes | bytearray) -> bool:
    """True for JSON that is within all bounds by its length and its brackets, those in strings too; 0.6 us per KB, and
    nothing for JSON that is longer than the bound."""
    if len(raw) > VALUES_MAX:
        return False
    return raw.count(b"[", UNCHECKED_BYTES_MAX) + raw.count(b"{", UNCHECKED_BYTES_MAX) <= CONTAINERS_MAX // 2


def check_json_size(raw: bytes | bytearray, structure_max: int | None = STRUCTURE_MAX) -> None:
    """Raises ApiError for JSON that holds more than a request may; takes some 70 ms for 16 MiB, in steps of 20."""
    if len(raw) <= UNCHECKED_BYTES_MAX or _is_small(raw, structure_max):
        return
    # marks in strings are text: what stands between two quotes is left out, escaped ones do not end a string
    bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    quotes = bare.count(b'"')
    left = None if structure_max is None else structure_max - quotes
    if quotes > 2 * STRINGS_MAX or not _is_small(b"".join(bare.split(b'"')[::2]), left):
        fault = f"the request holds more than {VALUES_MAX} values, {CONTAINERS_MAX} objects and lists"
        fault += f", or {STRINGS_MAX} strings" if structure_max is None else f", {STRINGS_MAX} strings"
        fault += "" if structure_max is None else f", or {structure_max} digits and marks outside strings"
        raise ApiError(413, f"{fault}: send less", code="request_too_large")


def _is_small(raw: bytes | bytearray, structure_max: int | None) -> bool:
    marks = raw.translate(None, _NOT_STRUCTURE)
    return (
        (structure_max is None or len(marks) <= structure_max)
        and marks.count(b",") <= VALUES_MAX
        and marks.count(b"[") + marks.count(b"{") <= CONTAINERS_MAX
    )
