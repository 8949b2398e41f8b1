"""A key is checked against the fingerprints of streams and registry, and against chains where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.clock import SystemClock
from core.codec import CHAIN_START, digest, encode_event, encode_message
from core.errors import CallerError
from core.ids import SourceId, StreamName, StreamSeq
from core.keys import DeploymentKey
from core.subjects import LOAD, ROUTING, SNAPSHOTS, subject
from streams import key_check
from streams.key_check import REGISTRY_KEY, ChainEvidence, CheckedKey, chain_evidence, ensure_own, register_own
from streams.memory.memory_log import MemoryLog
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from tests.projections.facts import joined

STREAMS = [LOAD, ROUTING, SNAPSHOTS]
ONE, OTHER = DeploymentKey(b"1" * 32), DeploymentKey(b"2" * 32)
FILE = Path("/etc/contrail/key")


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog("test", SystemClock())


def checked(key: DeploymentKey) -> CheckedKey:
    return CheckedKey(key, "test", FILE)


async def start(log: MemoryLog, key: DeploymentKey) -> None:
    """The streams as a start with that key leaves them."""
    await ensure_own(log, STREAMS, STREAMS, checked(key))


async def write(log: MemoryLog, key: DeploymentKey, count: int, source: str = "a", stream: StreamName = LOAD) -> None:
    """Messages of one source, as parts of every version write them."""
    where, head, seq = subject("test", stream, source), CHAIN_START, StreamSeq(0)
    for n in range(count):
        payload = encode_message(SourceId(source), n, head, 1, [encode_event(joined())], key.generation)
        head, seq = digest(payload, key.chain_key), await log.append(stream, where, payload, f"{source}:{n}", seq)


def test_fingerprints_tell_keys_namespaces_and_generations_apart() -> None:
    """Each is 16 hex digits; SEED's alone outlives generations, and no secret is in them."""
    new = ONE.rotated()
    first, second = ONE.fingerprints("test"), new.fingerprints("test")
    assert set(first) == {"0", "seed"}
    assert set(second) == {"0", "1", "seed"}
    assert first.items() <= second.items()
    every = [*second.values(), *ONE.fingerprints("prod").values(), *OTHER.fingerprints("test").values()]
    assert len(set(every)) == len(every)
    assert all(len(bytes.fromhex(each)) == 8 for each in every)
    assert f"{ONE.hash_seed:016x}" not in every


async def test_the_first_key_of_new_streams_stays(log: MemoryLog) -> None:
    """Its own later starts pass; another key's are refused with both named, and leave the streams as they were."""
    await start(log, ONE)
    await start(log, ONE)
    with pytest.raises(CallerError) as refused:
        await start(log, OTHER)
    text = str(refused.value)
    for key in (ONE, OTHER):
        assert key.fingerprints("test")["0"] in text
    assert "namespace test belongs to another deployment" in text
    assert str(FILE) in text
    assert [await log.fingerprints(stream) for stream in STREAMS] == [ONE.fingerprints("test")] * 3


async def test_a_changed_key_adds_its_generation(log: MemoryLog) -> None:
    """Its first start adds the new fingerprint. A part with the old file is refused from then on."""
    new = ONE.rotated()
    await start(log, ONE)
    await start(log, new)
    assert await log.fingerprints(LOAD) == new.fingerprints("test")
    await start(log, new.without(0))
    with pytest.raises(CallerError, match=r"was changed: stream load names .* copy the key file"):
        await start(log, ONE)
    with pytest.raises(CallerError, match="belongs to another deployment"):
        await start(log, ONE.rotated())  # changed a second time, elsewhere


async def test_a_key_that_forgot_its_first_generation_at_once(log: MemoryLog) -> None:
    """No generation is common; the seed of block hashes shows that the key is the same deployment's."""
    await start(log, ONE)
    new = ONE.rotated().without(0)
    await start(log, new)
    assert (await log.fingerprints(LOAD)).items() >= new.fingerprints("test").items()
    with pytest.raises(CallerError, match="belongs to another deployment"):
        await start(log, OTHER.rotated().without(0))


async def test_streams_of_the_version_before_get_fingerprints_by_their_chains(log: MemoryLog) -> None:
    """Chains of the key: they get them. Chains of another: the start is refused, and they get none."""
    await log.ensure(STREAMS)
    await write(log, ONE, 2)
    await write(log, ONE, 1, "b", ROUTING)
    with pytest.raises(CallerError, match="newest messages of stream load are sealed with another key"):
        await start(log, OTHER)
    assert await log.fingerprints(LOAD) == {}
    await start(log, ONE)
    assert await log.fingerprints(ROUTING) == ONE.fingerprints("test")


async def test_a_log_where_both_wrote(log: MemoryLog) -> None:
    """The damage was done already: the first to start with this version keeps the namespace."""
    await log.ensure(STREAMS)
    await write(log, ONE, 3)
    await write(log, OTHER, 3, "b")
    await start(log, OTHER)
    with pytest.raises(CallerError, match="belongs to another deployment"):
        await start(log, ONE)


async def test_evidence_of_chains(log: MemoryLog) -> None:
    """Single messages are none; nor is one under a generation that was removed. A later generation is foreign."""
    await log.ensure(STREAMS)
    assert await chain_evidence(log, LOAD, ONE.chain_key) is ChainEvidence.NONE
    for source in "abc":
        await write(log, ONE, 1, source)
    assert await chain_evidence(log, LOAD, OTHER.chain_key) is ChainEvidence.NONE
    await write(log, ONE, 2, "d")
    assert await chain_evidence(log, LOAD, ONE.chain_key) is ChainEvidence.FITS
    assert await chain_evidence(log, LOAD, ONE.rotated().chain_key) is ChainEvidence.FITS
    assert await chain_evidence(log, LOAD, ONE.rotated().without(0).chain_key) is ChainEvidence.NONE
    assert await chain_evidence(log, LOAD, OTHER.chain_key) is ChainEvidence.FOREIGN
    await write(log, ONE.rotated(), 2, "e", ROUTING)
    assert await chain_evidence(log, ROUTING, ONE.chain_key) is ChainEvidence.FOREIGN


async def test_the_bounds_of_evidence(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older messages than MESSAGES_MAX are not read, and PAIRS_MAX foreign pairs are enough."""
    await log.ensure(STREAMS)
    await write(log, ONE, 3)
    await write(log, OTHER, 4, "b")
    monkeypatch.setattr(key_check, "MESSAGES_MAX", 5)
    assert await chain_evidence(log, LOAD, ONE.chain_key) is ChainEvidence.FOREIGN
    monkeypatch.setattr(key_check, "MESSAGES_MAX", 6)
    assert await chain_evidence(log, LOAD, ONE.chain_key) is ChainEvidence.FITS
    monkeypatch.setattr(key_check, "PAIRS_MAX", 3)
    assert await chain_evidence(log, LOAD, ONE.chain_key) is ChainEvidence.FOREIGN


async def test_the_registry_has_the_fingerprints_too() -> None:
    """Two deployments with logs of their own and one registry: the second one is refused."""
    registry = MemoryRegistry(MemoryRegistryStore())
    await register_own(registry, checked(ONE))
    await register_own(registry, checked(ONE))
    with pytest.raises(CallerError, match=f"{REGISTRY_KEY} in etcd names the key {ONE.fingerprints('test')['0']}"):
        await register_own(registry, checked(OTHER))
    await register_own(registry, checked(ONE.rotated()))
    with pytest.raises(CallerError, match="was changed"):
        await register_own(registry, checked(ONE))
    await registry.put(REGISTRY_KEY, b"no JSON")
    await register_own(registry, checked(OTHER))
