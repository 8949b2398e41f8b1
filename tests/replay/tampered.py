"""Exports that somebody changed who knows their form: checksums are mended, and chains if he has a key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from core.codec import JSON_START, Message, decode_message, encode_event, encode_message
from core.ids import Epoch
from projections.folds.snapshot import decode
from replay.redact.redacted_snapshot import rechained
from replay.redact.resealing import Resealing
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from streams.log import Record


def tampered(
    path_in: Path, path_out: Path, change: Callable[[Record], Record], *, rechain_key: bytes | None = None
) -> Path:
    """The export with every record as `change` gives it back, and all checksums right.

    With a chain key all chains are sealed anew under it, also those in snapshots and in the contents; `key_check`
    stays that of the original, as does everything else.
    """

    def sealed(record: Record, _: Message, prev: bytes) -> bytes:
        return with_prev(change(record).payload, prev)

    with ArchiveReader.open(path_in) as source:
        contents = source.contents
        writer = ArchiveWriter(
            path_out,
            contents.namespace,
            rechain_key or b"",
            contents.program,
            contents.made_ms,
            check=contents.key_check,
        )
        resealing = Resealing(source, b"", rechain_key or b"")
        for stream in source.streams:
            span = source.span(stream)
            writer.open(stream, Epoch(span.epoch), span.first_seq, span.log_first_seq)
            if rechain_key is None:
                for record in source.read(stream):
                    writer.add(change(record))
            else:
                for record, payload in resealing.stream(
                    stream, lambda it, _, prev: with_prev(change(it).payload, prev)
                ):
                    writer.add(change(record)._replace(payload=payload))
            writer.reached(stream, span.last_seq)
        for manifest in source.snapshots():
            content = source.snapshot(manifest)
            if rechain_key is not None:
                state = decode(b"", content)
                manifest, content = rechained(manifest, state, resealing.passed(manifest.id), rechain_key)  # noqa: PLW2901
            writer.add_snapshot(manifest, content)
        said = writer.contents(contents.from_ms, contents.to_ms, redacted=contents.redacted)
        heads = contents.heads if rechain_key is None else said.heads
        writer.finish(msgspec.structs.replace(said, heads=heads, chain_key=contents.chain_key))
    return path_out


class _Sealed(msgspec.Struct):
    v: int
    source: str
    n: int
    prev: bytes
    sent_ms: int
    events: list[msgspec.Raw]


def with_prev(payload: bytes, prev: bytes) -> bytes:
    """The message as it is, but behind another one."""
    if payload[:1] == JSON_START:
        sealed = msgspec.json.decode(payload, type=_Sealed)
        return msgspec.json.encode(msgspec.structs.replace(sealed, prev=prev))
    sealed = msgspec.msgpack.decode(payload, type=_Sealed)
    return msgspec.msgpack.encode(msgspec.structs.replace(sealed, prev=prev))


def event_changed(record: Record, change: Callable[[Message], Message]) -> Record:
    """The record with another message in it, in msgpack; its place in the chain is the old one."""
    message = change(decode_message(record.payload))
    events = [encode_event(event) for event in message.events]  # type: ignore[arg-type]
    payload = encode_message(message.source, message.n, message.prev, message.sent_ms, events)
    return record._replace(payload=payload)
