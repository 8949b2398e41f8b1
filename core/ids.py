"""The names of things: each domain quantity has a type of its own.

Ids of workers and replicas are 64 random bits, new at every start, written as 16 hex digits everywhere
(JSON, subjects, file names); columns of ids in events hold them as 8 bytes each, big-endian, so that text and
bytes sort alike.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from typing import NewType

WorkerId = NewType("WorkerId", str)
"""One cache's life: 16 hex digits, new at every start of its engine."""
ReplicaId = NewType("ReplicaId", str)
"""One router's life: 16 hex digits, new at every start."""
SourceId = NewType("SourceId", str)
"""Writer of a chain of messages: the id of a worker or replica, or `{id}-lost`."""
LOST_SUFFIX = "-lost"
"""A replica that finds a worker or replica gone writes its end as the source `{id}-lost`, in one message, n = 0."""
StreamName = NewType("StreamName", str)
"""The short name of a stream: `kv_0`, `load`, `routing`; the broker's name has the namespace before it."""
StreamSeq = NewType("StreamSeq", int)
"""Position in a stream, from 1; 0 is before the first."""
Epoch = NewType("Epoch", int)
"""When the stream was created, in ms since 1970: a stream that was made anew starts another history."""
RequestId = NewType("RequestId", str)
"""As the client gave it, or made by the front end; with a suffix if the replica served another one of that id then."""
BlockHash = NewType("BlockHash", int)
"""XXH3-64 of everything from the start up to and including the block."""

NAME = re.compile(r"[a-z0-9-]{1,63}")
"""Form of a name in a subject (namespace, worker name)."""

COLUMN_WIDTH = 8
"""Bytes per id in a column."""

_SUFFIX_BYTES = 4
SUFFIX_CHARS = 1 + 2 * _SUFFIX_BYTES
"""Length of the suffix of a request that got another id."""
_SUFFIX = re.compile(r"\.[0-9a-f]{8}")


def new_id() -> str:
    """64 fresh random bits as 16 hex digits."""
    return secrets.token_hex(8)


def renamed(request: RequestId) -> RequestId:
    """Another id for a request whose own one is in progress: `given_id` finds the client's in it."""
    return RequestId(f"{request}.{secrets.token_hex(_SUFFIX_BYTES)}")


def given_id(request: str) -> str:
    """The id without the suffix of `renamed`; as it is if it has none."""
    return request[:-SUFFIX_CHARS] if _SUFFIX.fullmatch(request[-SUFFIX_CHARS:]) else request


def to_column(ids: Sequence[str]) -> bytes:
    """The ids, 8 bytes each, in the order given."""
    return bytes.fromhex("".join(ids))


def id_lines(ids: Iterable[str]) -> bytes:
    """The ids as text, one a line, in the order given; there is at least one."""
    return ("\n".join(ids) + "\n").encode()


def from_column(column: bytes) -> list[str]:
    """The ids of a column, in order; its inverse is `to_column`."""
    text = column.hex()
    return [text[i : i + 2 * COLUMN_WIDTH] for i in range(0, len(text), 2 * COLUMN_WIDTH)]
