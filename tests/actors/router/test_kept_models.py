"""Models that are kept for front ends that start while there is no worker."""

from __future__ import annotations

import random

import msgspec
import pytest

from actors.membership.registration import Registration
from actors.router import kept_models
from actors.router.kept_models import KeptModels
from core.errors import Unavailable
from core.keys import DeploymentKey
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.etcd.etcd_registry import EtcdRegistry
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from streams.registry import Registry
from tests.fixtures.eventually import eventually

KEY = DeploymentKey(bytes(32)).chain_key
MODEL = "Qwen/Qwen3-8B: a name, with anything"
REGISTRATION = Registration(
    model=MODEL, address="10.0.0.1:1", engine="vllm 1", block_size=16, context_max=4096, name="decode-0", slots=8,
    aliases=("other",),
)  # fmt: skip
FILES = {"tokenizer.json": random.Random(1).randbytes(1_200_000), "chat_template.jinja": b"{{ x }}"}
PIECES = 3


def kept(registry: Registry, key: bytes = KEY) -> KeptModels:
    return KeptModels(registry, key, {MODEL})


@pytest.fixture
def store() -> MemoryRegistryStore:
    return MemoryRegistryStore()


async def test_a_model_is_found_as_it_was_kept(etcd_server: EmbeddedEtcd) -> None:
    """By another process, over a real etcd, without the worker's addresses. A further worker changes nothing."""
    login = etcd_server.credentials
    one, two = [await EtcdRegistry.connect(etcd_server.endpoint, "kept-models", login) for _ in range(2)]
    try:
        assert await kept(two).load() == []
        await kept(one).keep(REGISTRATION, FILES)
        (found,) = await kept(two).load()
        assert found.files == FILES
        assert found.registration == msgspec.structs.replace(REGISTRATION, address="", name="")
        before = await one.get("models/")
        await kept(two).keep(msgspec.structs.replace(REGISTRATION, address="10.0.0.2:2", name="decode-1"), FILES)
        assert await one.get("models/") == before
        assert len(before) == PIECES + 1
        await kept(two).keep(REGISTRATION, {"tokenizer.json": b"{}"})
        assert (await kept(one).load())[0].files == {"tokenizer.json": b"{}"}
    finally:
        for each in (one, two):
            await each.close()


@pytest.mark.parametrize(("place", "value"), [(-1, b"no card"), (-1, b"{}"), (0, b""), (1, b"other bytes")])
async def test_a_damaged_model_counts_as_none(
    store: MemoryRegistryStore, place: int, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Its card, or a piece of it. It is logged."""
    registry = MemoryRegistry(store)
    await kept(registry).keep(REGISTRATION, FILES)
    store.put((await registry.get("models/"))[place].key, value)
    assert await kept(registry).load() == []
    assert "is kept in vain" in caplog.text


async def test_a_model_of_another_key_counts_as_none(store: MemoryRegistryStore) -> None:
    """A program without the deployment's key gives front ends no tokenizer."""
    registry = MemoryRegistry(store)
    await kept(registry, DeploymentKey(b"2" * 32).chain_key).keep(REGISTRATION, FILES)
    assert await kept(registry).load() == []


async def test_what_is_not_kept(
    store: MemoryRegistryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Models of fleets that never end, and a tokenizer beyond the bound."""
    registry = MemoryRegistry(store)
    await kept(registry).keep(msgspec.structs.replace(REGISTRATION, model="m"), FILES)
    monkeypatch.setattr(kept_models, "PIECES_MAX", PIECES - 1)
    await kept(registry).keep(REGISTRATION, FILES)
    assert await registry.get("models/") == []
    assert "is not kept for a fleet at zero" in caplog.text


async def test_files_beyond_the_bound_are_not_read(
    store: MemoryRegistryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However well they were compressed."""
    registry = MemoryRegistry(store)
    await kept(registry).keep(REGISTRATION, {"tokenizer.json": bytes(100_000)})
    monkeypatch.setattr(kept_models, "FILES_BYTES_MAX", 50_000)
    assert await kept(registry).load() == []
    assert "its files cannot be read" in caplog.text


async def test_a_registry_that_is_away_is_asked_again(
    store: MemoryRegistryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The model is kept when it is back."""
    monkeypatch.setattr(kept_models, "RETRY_S", 0.01)
    registry, put = MemoryRegistry(store), MemoryRegistry.put
    away = [Unavailable("etcd is away")] * 2

    async def put_later(self: MemoryRegistry, key: str, value: bytes) -> int:
        if away:
            raise away.pop()
        return await put(self, key, value)

    monkeypatch.setattr(MemoryRegistry, "put", put_later)
    await kept(registry).keep(REGISTRATION, FILES)
    await eventually(lambda: not away, "two tries")
    assert len(await kept(registry).load()) == 1
    assert "cannot be kept now" in caplog.text
