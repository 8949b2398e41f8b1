"""SGLang's KV events, as its own radix cache and publisher made them (`tests/fixtures/sglang`)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.engines.engine import CacheEmptied, CacheGap, CacheRemoved, CacheStored
from actors.engines.kv_events.sglang_event_reader import SglangEventReader
from actors.kv_cache.cache_mirror import CacheMirror
from core.errors import Corrupt
from core.prompt import Prompt, hashes_from_bytes, scope_bytes, tokens_to_bytes

FILE = Path(__file__).parents[3] / "fixtures" / "sglang" / "sglang_events.json"
SEED = 7
FORMS = ("default", "dynamo")
LORA = "0123456789abcdef0123456789abcdef"


@cache
def recording() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def payloads(run: str) -> list[bytes]:
    return [bytes.fromhex(frames[-1]) for frames in recording()["runs"][run]["published"]]


def held_by_sglang(run: str, batch: int, adapters: dict[str, str] | None = None) -> set[int]:
    """Our hashes of the blocks that its cache held after that batch; those under an extra key only if it is that of an
    adapter."""
    page, known = recording()["page"], adapters or {}
    found: set[int] = set()
    for extra, salt, tokens in recording()["runs"][run]["held"][batch]:
        if extra is None or extra in known:
            scope = scope_bytes(known.get(extra), salt)
            found.update(hashes_from_bytes(Prompt(tokens_to_bytes(tokens), page, SEED, scope).hashes()))
    return found


def as_array(event: dict[str, Any]) -> list[Any]:
    """As older servers send it: a place for each field, and none for salts."""
    names = {
        "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
        "BlockRemoved": ("block_hashes", "medium"),
        "AllBlocksCleared": (),
    }[event["type"]]
    return [event["type"], *(event.get(name) for name in names)]


@pytest.mark.parametrize("form", FORMS)
def test_the_mirror_is_sglangs_cache(form: str) -> None:
    """After each batch the mirror holds the prefixes that the radix cache held, salts apart; splits, evictions and a
    reset included."""
    reader, mirror = SglangEventReader(), CacheMirror(recording()["page"], SEED)
    kinds = set()
    for number, payload in enumerate(payloads(form)):
        for change in reader.read(payload).changes:
            kinds.add(type(change))
            mirror.apply(change)
        assert set(mirror.held("device")) == held_by_sglang(form, number)
    assert kinds == {CacheStored, CacheRemoved, CacheEmptied}
    assert (mirror.strangers, mirror.orphans, mirror.blocks_unindexed) == (0, 0, 0)


def test_arrays_mean_the_same() -> None:
    """Batches of plain requests in the older form have the same changes."""
    plain = 0
    for payload in payloads("default"):
        time, events, rank = msgspec.msgpack.decode(payload)
        if any(event.get("cache_salt") for event in events):
            continue
        plain += 1
        older = msgspec.msgpack.encode([time, [as_array(event) for event in events], rank])
        assert SglangEventReader().read(older) == SglangEventReader().read(payload)
    assert plain > 10


def test_adapters_are_told_apart() -> None:
    """In the dynamo form blocks of an adapter have its name as their scope. Blocks under another extra key look plain,
    which is why none is sent."""
    run = "dynamo with extra keys"
    mirror = CacheMirror(recording()["page"], SEED)
    surplus = set()
    for number, payload in enumerate(payloads(run)):
        for change in SglangEventReader().read(payload).changes:
            mirror.apply(change)
        held, expected = set(mirror.held("device")), held_by_sglang(run, number, {LORA: "alpha"})
        assert expected <= held
        surplus |= held - expected
    assert any("alpha" in str(payload) for payload in payloads(run))
    assert surplus, "the recording shows the trap"


def event(**fields: Any) -> dict[str, Any]:
    plain = {
        "type": "BlockStored", "block_hashes": [-5, 6], "parent_block_hash": None, "token_ids": [1, 2, 3, 4],
        "block_size": 2, "lora_id": None, "medium": "GPU",
    }  # fmt: skip
    return plain | fields


def read_one(raw: Any) -> Any:
    (change,) = SglangEventReader().read(msgspec.msgpack.encode([1.5, [raw], 0])).changes
    return change


PLAIN = CacheStored((-5, 6), None, (1, 2, 3, 4), 2, "device", None, None, indexable=True)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, PLAIN),
        ({"medium": None}, PLAIN),
        ({"medium": "CPU_PINNED"}, PLAIN._replace(tier="host")),
        ({"medium": "DISK"}, PLAIN._replace(tier="disk")),
        ({"medium": "EXTERNAL"}, PLAIN._replace(tier="external", indexable=False)),
        ({"lora_id": 3}, PLAIN._replace(indexable=False)),
        ({"lora_name": "alpha", "cache_salt": "s"}, PLAIN._replace(adapter="alpha", cache_salt="s")),
        ({"cache_salt": "s", "parent_block_hash": 9}, PLAIN._replace(parent=9)),
        ({"token_ids": [[1, 2], [2, 3], [3, 4], [4, 5]]}, PLAIN._replace(indexable=False)),
        ({"token_ids": [1, 2, 3]}, PLAIN._replace(tokens=(1, 2, 3), indexable=False)),
    ],
)
def test_stored(fields: dict[str, Any], expected: CacheStored) -> None:
    """Each field that decides what a block is."""
    assert read_one(event(**fields)) == expected


def test_others() -> None:
    """Removals by tier; an unknown kind of event is a gap, and bytes that are no batch are refused."""
    removal = {"type": "BlockRemoved", "block_hashes": [6, -5], "medium": "CPU_PINNED"}
    assert read_one(removal) == CacheRemoved((6, -5), "host")
    assert read_one(removal | {"medium": "EXTERNAL"}) == CacheRemoved((6, -5), "external", False)
    assert isinstance(read_one({"type": "BlockMoved"}), CacheGap)
    with pytest.raises(Corrupt):
        SglangEventReader().read(b"\xc1")
