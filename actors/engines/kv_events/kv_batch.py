"""KV events of an engine as bytes: batches `[time, events, rank]` in msgpack, and the readers of their events.

An event is a map with the tag `type`; older engines send an array with the tag first. Unknown fields are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Union

import msgspec

from actors.engines.engine import CacheChange, CacheGap
from core.errors import Corrupt

BlockName = int | bytes


class KvBatch(NamedTuple):
    """One batch of the engine's cache events."""

    made_s: float
    """By the engine's wall clock."""
    changes: list[CacheChange]
    """In order."""


class KvBatchReader(Protocol):
    """Reads the batches of one engine, in order."""

    @property
    def groups(self) -> int:
        """Groups of layers that stored blocks; above 1 the model is a hybrid of several kinds of attention."""

    def read(self, payload: bytes) -> KvBatch:
        """The changes of one batch; Corrupt if it is no batch."""

    def forget(self) -> None:
        """The reader keeps nothing of blocks that were stored before the call: events were missed."""


class _AnyBatch(msgspec.Struct, array_like=True):
    time: float
    events: list[Any]


class BatchForm:
    """The kinds of events that one kind of engine sends, each a struct whose tag is the engine's name of it."""

    def __init__(self, *kinds: type[msgspec.Struct]) -> None:
        self._kinds = {kind.__struct_config__.tag: kind for kind in kinds}
        fields = [("time", float), ("events", list[Union[kinds]])]  # type: ignore[valid-type]  # noqa: UP007 (at run time)
        self._typed = msgspec.msgpack.Decoder(msgspec.defstruct("_Batch", fields, array_like=True))
        self._any = msgspec.msgpack.Decoder(_AnyBatch)

    def __repr__(self) -> str:
        return f"<BatchForm {', '.join(map(str, self._kinds))}>"

    def decode(self, payload: bytes) -> tuple[float, list[Any]]:
        """The time and the events, each of one of the kinds; Corrupt if it is no batch.

        An event of an unknown kind is a `CacheGap`: it may have changed the cache.
        """
        try:
            batch: Any = self._typed.decode(payload)
        except msgspec.ValidationError:
            return self._decode_one_by_one(payload)
        except msgspec.DecodeError as error:
            raise Corrupt(f"not a batch of KV events: {error}") from error
        return batch.time, batch.events

    def _decode_one_by_one(self, payload: bytes) -> tuple[float, list[Any]]:
        """A batch with an event in another form, or of a kind that this program does not know."""
        try:
            batch = self._any.decode(payload)
            return batch.time, [self._event(raw) for raw in batch.events]
        except msgspec.DecodeError as error:
            raise Corrupt(f"not a batch of KV events: {error}") from error

    def _event(self, raw: Any) -> msgspec.Struct | CacheGap:
        tag = raw.get("type") if isinstance(raw, dict) else raw[0] if isinstance(raw, list) and raw else None
        kind = self._kinds.get(tag) if isinstance(tag, str) else None
        if kind is None:
            return CacheGap(f"the engine sent an event of a kind that is not known here: {tag}")
        if isinstance(raw, list):
            raw = dict(zip(("type", *kind.__struct_fields__), raw, strict=False))
        return msgspec.convert(raw, kind)


def batch_handler(reader: KvBatchReader, on_cache: Callable[[CacheChange], None]) -> Callable[[bytes], float]:
    """A function for batches: it passes their changes on, and a gap for one that is none. It returns when the batch
    was made, in seconds of the engine's clock; 0 if that is unknown."""

    def on_batch(payload: bytes) -> float:
        try:
            made_s, changes = reader.read(payload)
        except Corrupt as error:
            made_s, changes = 0.0, [CacheGap(str(error))]
        for change in changes:
            on_cache(change)
        return made_s

    return on_batch


def block_number(name: BlockName) -> int:
    """The engine's name of a block as a number."""
    return name if isinstance(name, int) else int.from_bytes(name, "big")
