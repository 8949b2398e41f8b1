"""Events as people and scripts read them: one JSON object each, stable snake_case keys, ids and hashes as hex."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from core.block_spans import places
from core.codec import DIGEST_BYTES, Message
from core.events import EVENT_VERSION, DecisionCounts, DivergenceFound, Points, PromptBase, UnknownEvent
from core.events.request_stages import PER_MS, RequestStages
from core.events.scale import PrefillDemand, ScaleCandidate, ScaleJudgement
from core.generation import PrefillReport
from core.ids import StreamName, StreamSeq, from_column
from core.kv_transfer import KvBlocks
from core.prompt import hashes_from_bytes


def hash_text(block: int) -> str:
    """A hash or digest as 16 hex digits."""
    return f"{block:016x}"


def time_text(time_ms: int) -> str:
    """RFC 3339 with milliseconds, UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _hashes(value: bytes) -> list[str]:
    return [hash_text(block) for block in hashes_from_bytes(value)]


def _pieces(value: bytes) -> list[dict[str, int]]:
    return [{"place": place, "blocks": blocks} for place, blocks in places(value)]


def _parent(value: int | None) -> str | None:
    return None if value is None else hash_text(value)


def _cursor(value: dict[str, Any]) -> dict[str, Any]:
    return {stream: {"epoch": epoch, "seq": seq} for stream, (epoch, seq) in value.items()}


def _excluded(value: dict[str, Any]) -> dict[str, Any]:
    return {reason: {"count": count, "first": from_column(column)} for reason, (count, column) in value.items()}


def _points(value: dict[str, Points]) -> dict[str, Any]:
    return {
        stream: {
            "epoch": points.epoch,
            "seqs": points.seqs,
            "digests": _hashes(points.digests),
            "heads": [points.heads[i : i + DIGEST_BYTES].hex() for i in range(0, len(points.heads), DIGEST_BYTES)],
        }
        for stream, points in value.items()
    }


def ranges_text(numbers: Iterable[int]) -> str:
    """`0-43,57`: numbers in their order, those that follow on each other as one."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _blocks(value: Any) -> Any:
    """A number of blocks, or the blocks inside an engine: thousands of ids as a few ranges per group of layers."""
    if not isinstance(value, KvBlocks):
        return value
    return {"request": value.request, "tokens": value.tokens, "ids": [ranges_text(group) for group in value.ids]}


def _prefill(value: PrefillReport | None) -> dict[str, Any] | None:
    if value is None:
        return None
    shown = msgspec.structs.asdict(value)
    return {key: shown[key] for key in shown if shown[key] or key not in LATER_OF_REPORTS}


def _counts(value: DecisionCounts | msgspec.UnsetType) -> dict[str, int] | None:
    return None if isinstance(value, msgspec.UnsetType) else msgspec.structs.asdict(value)


def _offset(value: int | msgspec.UnsetType) -> int:
    return 0 if isinstance(value, msgspec.UnsetType) else value


def _begins(value: dict[str, Any] | msgspec.UnsetType) -> dict[str, Any]:
    return {} if isinstance(value, msgspec.UnsetType) else _cursor(value)


def _version(value: int | msgspec.UnsetType) -> int:
    """Version 1 where an earlier program left it out."""
    return EVENT_VERSION if isinstance(value, msgspec.UnsetType) else value


def _stages(value: tuple[int, ...]) -> dict[str, float]:
    """Milliseconds by name; without those that took no time, and those that were not reported."""
    stages = RequestStages.of(value)
    return {} if stages is None else {name: each / PER_MS for name, each in stages._asdict().items() if each > 0}


def _base(value: PromptBase) -> dict[str, Any]:
    return {**msgspec.structs.asdict(value), "hashes": _hashes(value.hashes), "column": value.column.hex()}


def _candidates(value: bytes | tuple[ScaleCandidate, ...]) -> list[Any]:
    """Ids of workers; of a decision on the fleet's size, predictions."""
    return from_column(value) if isinstance(value, bytes) else _rows(value)


def _prefill_demand(value: PrefillDemand) -> dict[str, Any]:
    return msgspec.structs.asdict(value) | {"cells": _rows(value.cells)}


def _judgement(value: ScaleJudgement) -> dict[str, Any]:
    return msgspec.structs.asdict(value) | {"workers": _rows(value.workers)}


def _rows(value: tuple[msgspec.Struct, ...]) -> list[Any]:
    shown = [msgspec.structs.asdict(row) for row in value]
    return [{name: each for name, each in row.items() if each not in {None, msgspec.UNSET}} for row in shown]


_SHOWN: dict[str, Callable[[Any], Any]] = {
    "hashes": _hashes,
    "pieces": _pieces,
    "heads": _hashes,
    "blocks": _blocks,
    "prefill": _prefill,
    "prefill_demand": _prefill_demand,
    "parent": _parent,
    "candidates": _candidates,
    "cells": _rows,
    "hits": _rows,
    "forecast": msgspec.structs.asdict,
    "judged": _judgement,
    "workers": from_column,
    "cursor": _cursor,
    "excluded": _excluded,
    "kv_head": bytes.hex,
    "seed": hash_text,
    "points": _points,
    "counts": _counts,
    "clock_offset_ms": _offset,
    "begins": _begins,
    "refolded": hash_text,
    "columns": dict,
    "base": _base,
    "pools": msgspec.structs.asdict,
    "adapters": _rows,
    "reads": _version,
    "stages": _stages,
    "fetch": msgspec.structs.asdict,
}
"""Fields with another form in the log than in JSON."""
LATER_OF_REPORTS = frozenset({"compute_ms", "remote_cached_tokens"})
"""Keys of a report on a prompt that JSON leaves out where they are 0: earlier programs did not write them."""
ABSENT = frozenset(
    {
        "adapter",
        "adapter_slots",
        "adapters",
        "assumed",
        "base",
        "budget",
        "decision",
        "decode_requests",
        "decode_rows_us",
        "fence",
        "fetch",
        "judged",
        "load_time",
        "load_times",
        "model",
        "pools",
        "prefill_demand",
        "profile",
        "role",
        "since",
        "sought",
        "transfer_us",
    }
)
"""Fields that JSON leaves out where the event does."""


def message_lines(stream: StreamName, seq: StreamSeq, time_ms: int, message: Message) -> list[dict[str, Any]]:
    """One dictionary per event: its `type`, its position and time in the log, its source, then its fields."""
    lines = []
    for i, event in enumerate(message.events):
        head = {
            "type": event.name if isinstance(event, UnknownEvent) else type(event).__name__,
            "stream": stream,
            "seq": seq,
            "time": time_text(time_ms),
            "source": message.source,
            "n": message.n,
            "i": i,
        }
        lines.append(head | _fields(event))
    return lines


def _fields(event: msgspec.Struct) -> dict[str, Any]:
    if isinstance(event, UnknownEvent):
        known = {key: value for key, value in event.fields.items() if key not in {"type", "v"}}
        return {"unknown": True, **{key: _plain(value) for key, value in known.items()}}
    shown = {
        name: _SHOWN[name](value) if name in _SHOWN else value
        for name, value in msgspec.structs.asdict(event).items()
        if name not in ABSENT or value is not msgspec.UNSET
        if name != "v"
    }
    if isinstance(event, DivergenceFound):
        shown["digest"] = hash_text(event.digest)  # in a decision it is text already
    return shown


def _plain(value: Any) -> Any:
    """Fields of events that we do not know: bytes as hex, also inside of lists and maps; the rest as it is."""
    match value:
        case bytes():
            return value.hex()
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {_plain(key): _plain(each) for key, each in value.items()}
        case _:
            return value
