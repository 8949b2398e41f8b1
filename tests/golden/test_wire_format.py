"""What stands on the wire and in the log, field by field: a class may be renamed, its tag and its fields may not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import orjson
import pytest

from actors.engines.simulated.simulated_side_channel import (
    BlockContents,
    BlocksFreed,
    FreeBlocks,
    ReadBlocks,
    SideChannelRefusal,
)
from actors.transport.frames import ToReplica, ToWorker
from core.events import EVENT_TYPES, PromptBase
from core.events.compact_decision import CompactDecision, DecisionValues, ShortColumns, ShortDecision, ShortValues
from core.events.compact_progress import CompactFinished, CompactPrefilled, FinishedMap, PrefilledMap
from core.events.compact_scale import (
    CapacityRow,
    CompactCapacity,
    CompactDecided,
    CompactDemand,
    DecidedRow,
    DemandRow,
    ForecastRow,
)
from core.events.routing import Columns, PrefixFetch
from core.events.scale import (
    DemandCell,
    HitRate,
    JudgedWorkers,
    PrefillDemand,
    ScaleCandidate,
    ScaleForecast,
    ScaleJudgement,
)

GOLDEN = Path(__file__).with_name("wire_format.json")
"""`{kind: {tag: [field, …]}}`, in the order of their bytes. Arrays have no tag, and nothing but their order names their
values. A new field is added here with the version that has it."""
KINDS: dict[str, list[type[msgspec.Struct]]] = {
    "events": list(EVENT_TYPES.values()),
    "compact decisions": [
        CompactDecision,
        DecisionValues,
        ShortDecision,
        ShortValues,
        Columns,
        ShortColumns,
        PrefixFetch,
        PromptBase,
    ],
    "first tokens and ends": [CompactPrefilled, PrefilledMap, CompactFinished, FinishedMap],
    "parts of a planner's events": [
        DemandCell,
        HitRate,
        PrefillDemand,
        ScaleCandidate,
        ScaleForecast,
        JudgedWorkers,
        ScaleJudgement,
    ],
    "rows of a planner's events": [
        CompactDemand,
        DemandRow,
        CompactCapacity,
        CapacityRow,
        CompactDecided,
        DecidedRow,
        ForecastRow,
    ],
    "frames to a worker": list(ToWorker.__args__),
    "frames to a replica": list(ToReplica.__args__),
    "frames of the simulated transfer": [ReadBlocks, FreeBlocks, BlockContents, BlocksFreed, SideChannelRefusal],
}


def fields(kinds: list[type[msgspec.Struct]]) -> Iterator[tuple[str, list[str]]]:
    for kind in kinds:
        info = msgspec.inspect.type_info(kind)
        assert isinstance(info, msgspec.inspect.StructType)
        yield str(info.tag or kind.__name__), [field.encode_name for field in info.fields]


@pytest.mark.parametrize("kind", KINDS)
def test_tags_and_fields_stand(kind: str) -> None:
    """They are read by processes of other versions, and for as long as logs are kept."""
    assert dict(fields(KINDS[kind])) == orjson.loads(GOLDEN.read_bytes())[kind]
