"""`contrail kv`: tenants' blocks are counted and erased by the pools' keepers, while the workers serve.

Log and registry are real, engines are simulated, and the files of their blocks are written by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from actors.engines.simulated.simulated_engine import SimulatedEngine
from actors.kv_blocks.block_seal import BlockSeal, block_name
from actors.kv_blocks.catalog_records import tenant_digest
from actors.kv_blocks.pool_folder import PoolDescription, PoolShare
from actors.kv_cache.cache_mirror import NamedBlock
from actors.kv_pool import entry_outbox, pool_keeper, shared_pool
from actors.kv_pool.pool_keeper import PoolKeeper
from actors.kv_pool.shared_pool import SharedPool
from actors.worker.worker import Worker, WorkerOptions
from api.auth.api_keys import ApiKey, add_key, new_key
from api.cli import worker_link
from api.cli.kv import erasure, tenant_blocks
from api.cli.kv.erasure import ErasedTenant, erase_from
from api.cli.kv.pool_search import find_pools
from api.cli.kv.tenant_blocks import kv
from api.cli.main import contrail
from core.clock import SystemClock
from core.errors import CallerError
from core.ids import new_id
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.embedded_nats import EmbeddedNats
from streams.etcd.etcd_registry import EtcdRegistry
from tests.actors.kv_blocks.test_pool_folder import KIND, shared_by
from tests.actors.world import FAST
from tests.api.deployed import Deployed, deployed
from tests.fixtures.eventually import eventually

BLOCK_BYTES = 8192


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little waits for seconds."""
    monkeypatch.setattr(shared_pool, "ELECT_EVERY_S", 0.1)
    monkeypatch.setattr(entry_outbox, "SEND_EVERY_S", 0.1)
    monkeypatch.setattr(pool_keeper, "LIST_EVERY_S", 0.1)
    monkeypatch.setattr(pool_keeper, "FOLD_S", 0.001)
    monkeypatch.setattr(erasure, "SETTLE_S", 0.3)
    monkeypatch.setattr(erasure, "KEEPER_PAUSE_S", 0.2)
    monkeypatch.setattr(worker_link, "CONNECT_S", 1.0)


class Fleet:
    """Workers of one deployment."""

    def __init__(self, here: Deployed, etcd: EmbeddedEtcd, stack: AsyncExitStack) -> None:
        self.here, self.etcd, self.stack = here, etcd, stack
        self.key = here.connection.key
        self.stopped: list[Worker] = []

    async def worker(self, name: str, folder: Path | None, *, shared: bool = False) -> Worker:
        connection = self.here.connection
        registry = await EtcdRegistry.connect(self.etcd.endpoint, connection.namespace, self.etcd.credentials)
        self.stack.push_async_callback(registry.close)
        engine = SimulatedEngine("sim", FAST)
        if folder is not None:
            folder.mkdir(exist_ok=True)
            share = PoolShare(new_id(), 1 << 30) if shared else None
            small = shared_by(folder.with_name(f"{folder.name} {name}"))
            pool = PoolDescription(folder, self.key.disk_key, KIND, 8, 32, bytes(4), small, share)
            engine.info = engine.info._replace(pool=pool)
        options = WorkerOptions(namespace=connection.namespace, name=name)
        worker = Worker(options, engine, self.here.log, registry, SystemClock(), self.key)
        await worker.start({})
        self.stack.push_async_callback(self.stop, worker)
        return worker

    async def stop(self, worker: Worker) -> None:
        """The worker has ended, if it had not before."""
        if worker not in self.stopped:
            self.stopped.append(worker)
            await worker.stop("the test is over", drain=False)

    def path(self, folder: Path, number: int) -> Path:
        file = block_name(self.key.disk_key, number.to_bytes(32, "big") + bytes(4))
        return folder / f"{file.hex()}.kv"

    async def store(self, worker: Worker, folder: Path, salts: dict[int, str]) -> None:
        """The worker's engine wrote blocks of these numbers, whose prompts have these salts; they are announced."""
        assert worker.pool is not None
        payload = memoryview(bytes(5000))
        for number, salt in salts.items():
            worker.pool.note([NamedBlock(number, 1000 + number, None, salt)])
            path = self.path(folder, number)
            path.write_bytes(BlockSeal(KIND).header(bytes.fromhex(path.stem), payload) + payload)
        await eventually(lambda: all(1000 + number in announced(worker) for number in salts), "they are announced")

    def files(self, folder: Path) -> set[int]:
        """Numbers of the blocks that lie there."""
        return {number for number in range(100) if self.path(folder, number).exists()}

    async def tenants(self, *words: str, status: int = 0) -> dict[str, Any]:
        found = await self.here.json(kv, "tenants", *words)
        assert found[0] == status, found
        value: dict[str, Any] = found[1]
        return value

    async def erase(self, *words: str, status: int = 0) -> dict[str, Any]:
        found = await self.here.json(kv, "erase", "--yes", *words)
        assert found[0] == status, found
        value: dict[str, Any] = found[1]
        return value


def keeper_of(worker: Worker) -> PoolKeeper | None:
    return worker.pool.keeper if isinstance(worker.pool, SharedPool) else worker.pool


def announced(*workers: Worker) -> set[int]:
    """Our hashes of the blocks that these workers announce as keepers."""
    keepers = [keeper for each in workers if (keeper := keeper_of(each)) is not None]
    return {block for keeper in keepers for tier in ("disk", "remote") for block in keeper.mirror.held(tier)}


@pytest.fixture
async def fleet(tmp_path: Path, nats_server: EmbeddedNats, etcd_server: EmbeddedEtcd) -> AsyncIterator[Fleet]:
    async with deployed(tmp_path, nats_server, etcd_server) as here, AsyncExitStack() as stack:
        yield Fleet(here, etcd_server, stack)


@asynccontextmanager
async def sharing(fleet: Fleet, folder: Path) -> AsyncIterator[tuple[Worker, Worker]]:
    """Two workers with one folder, the first one its keeper."""
    first = await fleet.worker("decode-0", folder, shared=True)
    await eventually(lambda: keeper_of(first) is not None, "a keeper")
    yield first, await fleet.worker("decode-1", folder, shared=True)


def keys(folder: Path, *tenants: str) -> str:
    file = folder / "keys"
    for tenant in tenants:
        made = new_key()
        add_key(file, ApiKey(name=tenant, tenant=tenant, sha256=made.sha256))
    return str(file)


async def test_a_tenants_blocks_are_counted_and_erased(fleet: Fleet, tmp_path: Path) -> None:
    """In a folder of two workers and on a third one's own disk; the blocks of others stay, and stay announced."""
    shared, own = tmp_path / "shared", tmp_path / "own"
    async with sharing(fleet, shared) as (first, second):
        third = await fleet.worker("decode-2", own)
        await fleet.store(first, shared, {1: "acme:", 2: "acme:a", 3: "other:", 4: "gateways:"})
        second.pool.note([NamedBlock(5, 1005, None, "acme:")])  # type: ignore[union-attr]
        await fleet.store(first, shared, {5: "acme:"})
        await fleet.store(third, own, {1: "acme:", 6: "", 7: "other:"})
        fleet.path(own, 8).write_bytes(b"of which no worker said what it is")
        await eventually(lambda: keeper_of(third).describe()["files"] == 4, "it is listed")  # type: ignore[union-attr]

        found = await fleet.tenants("--keys", keys(tmp_path, "acme", "other"))
        rows = {pool["tier"] + pool["keeper"]: pool for pool in found["pools"]}
        gateways = tenant_digest(fleet.key.disk_key, "gateways").hex()
        counts = {name: [(row["tenant"], row["blocks"]) for row in pool["tenants"]] for name, pool in rows.items()}
        assert counts == {
            "diskdecode-0": [("acme", 3), ("other", 1), (None, 1)],
            "diskdecode-2": [("", 1), ("acme", 1), ("other", 1), (None, 1)],
        }
        assert rows["diskdecode-0"]["tenants"][-1]["digest"] == gateways
        assert rows["diskdecode-0"]["workers"] == ["decode-0", "decode-1"]
        assert rows["diskdecode-0"]["tenants"][0]["bytes"] == 3 * BLOCK_BYTES
        assert rows["diskdecode-2"]["tenants"][-1]["digest"] == ""

        erased = await fleet.erase("--tenant", "acme")
        assert sorted((each["keeper"], each["blocks"], each["fault"]) for each in erased["pools"]) == [
            ("decode-0", 3, ""),
            ("decode-2", 2, ""),
        ]
        assert (fleet.files(shared), fleet.files(own)) == ({3, 4}, {6, 7})
        assert announced(first, second, third) == {1003, 1004, 1006, 1007}
        again = await fleet.erase("--tenant", "acme")
        assert [each["blocks"] for each in again["pools"]] == [0, 0]
        result = await fleet.here.run(kv, "erase", "--tenant", "nobody", "--yes")
        assert "no block of tenant nobody was in these pools: `contrail kv tenants` shows" in result.stdout

        result = await fleet.here.run(kv, "erase", "--no-tenant", "--yes")
        assert result.exit_code == 0, result.output
        assert "no block of no tenant is left in these pools" in result.output
        assert "contrail restart workers" in result.output
        assert fleet.files(own) == {7}
        table = (await fleet.here.run(kv, "tenants")).stdout
        assert gateways in table
        assert "decode-2" in table


async def test_one_pool_may_be_chosen_and_unknown_blocks_kept(fleet: Fleet, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    first, second = await fleet.worker("decode-0", one), await fleet.worker("decode-1", other)
    for worker, folder in ((first, one), (second, other)):
        await fleet.store(worker, folder, {1: "acme:", 2: "other:"})
        fleet.path(folder, 3).write_bytes(b"unknown")
    pool = keeper_of(first).id  # type: ignore[union-attr]
    erased = await fleet.erase("--tenant", "acme", "--pool", pool, "--keep-unknown")
    assert [(each["pool"], each["blocks"]) for each in erased["pools"]] == [(pool, 1)]
    assert (fleet.files(one), fleet.files(other)) == ({2, 3}, {1, 2, 3})
    result = await fleet.here.run(kv, "erase", "--tenant", "acme", "--pool", "0" * 16)
    assert isinstance(result.exception, CallerError)
    assert "no worker has a pool 0000000000000000" in str(result.exception)


async def test_a_command_that_was_killed_goes_on_when_it_is_run_again(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_keeper, "ERASED_AT_ONCE", 1)
    folder = tmp_path / "own"
    worker = await fleet.worker("decode-0", folder)
    await fleet.store(worker, folder, dict.fromkeys(range(6), "acme:"))
    (pool,) = (await find_pools(fleet.here.connection)).pools
    tenant = ErasedTenant(tenant_digest(fleet.key.disk_key, "acme"), unknown=True)
    erasing: asyncio.Task[object]

    def killed(blocks: int) -> None:
        erasing.cancel()

    erasing = asyncio.ensure_future(erase_from(fleet.here.connection, pool, tenant, killed))
    await asyncio.wait([erasing])
    assert erasing.cancelled()
    assert 0 < len(fleet.files(folder)) < 6
    assert (await fleet.erase("--tenant", "acme"))["pools"][0]["fault"] == ""
    assert fleet.files(folder) == set()


async def test_another_keeper_goes_on(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper ends behind the first part; the command finds the next one."""
    monkeypatch.setattr(pool_keeper, "ERASED_AT_ONCE", 1)
    folder = tmp_path / "shared"
    async with sharing(fleet, folder) as (first, second):
        await fleet.store(first, folder, dict.fromkeys(range(6), "acme:") | {9: "other:"})
        (pool,) = (await find_pools(fleet.here.connection)).pools
        tenant = ErasedTenant(tenant_digest(fleet.key.disk_key, "acme"), unknown=False)
        stopping: list[asyncio.Task[None]] = []

        def stop(blocks: int) -> None:
            if not stopping:
                stopping.append(asyncio.ensure_future(fleet.stop(first)))

        erased = await erase_from(fleet.here.connection, pool, tenant, stop)
        await asyncio.gather(*stopping)
        assert (erased.keeper, erased.blocks, erased.fault) == ("decode-1", 6, "")
        assert fleet.files(folder) == {9}
        await eventually(lambda: announced(second) == {1009}, "the other one's block is announced")


async def test_what_cannot_be_erased_is_said(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with status 1: a pool without a keeper, a worker of an earlier version, a disk that is not announced, a file
    that stays, a log that is away."""
    monkeypatch.setattr(erasure, "KEEPER_WAIT_S", 0.4)
    monkeypatch.setattr(pool_keeper, "ACKNOWLEDGED_S", 0.2)
    folder = tmp_path / "own"
    worker = await fleet.worker("decode-0", folder)
    await fleet.store(worker, folder, {1: "acme:"})
    keeper = keeper_of(worker)
    assert keeper is not None

    async def fault() -> str:
        result = await fleet.here.run(kv, "erase", "--yes", "--tenant", "acme")
        assert result.exit_code == 1, result.output
        assert "is left in" not in result.output
        return result.stdout

    async def never(timeout_s: float) -> bool:
        return False

    with monkeypatch.context() as patch:
        patch.setattr(keeper.publisher, "acknowledged", never)
        assert "the log acknowledges nothing within 0.2 s" in await fault()
    with monkeypatch.context() as patch:
        patch.setattr(keeper._folder, "erase", lambda names: {*names})
        assert "1 block cannot be removed" in await fault()
    with monkeypatch.context() as patch:
        welcome = worker.welcome()
        patch.setattr(worker, "welcome", lambda: msgspec.structs.replace(welcome, erases_blocks=False))
        assert "worker decode-0 is not asked: the worker is of an earlier version" in await fault()
    with monkeypatch.context() as patch:
        patch.setattr(worker, "pool", None)
        patch.setattr(worker.engine, "info", worker.engine.info._replace(disk_counts=dict))
        assert "the blocks of its disk tier are not announced" in await fault()
    shared = await fleet.worker("decode-1", tmp_path / "shared", shared=True)
    assert isinstance(shared.pool, SharedPool)
    await eventually(lambda: keeper_of(shared) is not None, "a keeper")
    with monkeypatch.context() as patch:
        patch.setattr(shared.pool, "keeper", None)
        assert "no worker keeps the pool within 0.4 s" in await fault()
    assert fleet.files(folder) == set(), "the other pool's blocks went all the same"


async def test_without_pools_there_is_nothing_to_erase(fleet: Fleet) -> None:
    await fleet.worker("decode-0", None)
    for words in (("tenants",), ("erase", "--tenant", "acme")):
        result = await fleet.here.run(kv, *words)
        assert (result.exit_code, result.stdout) == (
            0,
            "no worker has a pool: there is no disk tier and no remote tier\n",
        )


async def test_it_asks_before_it_erases(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the numbers of blocks. Without a terminal it needs --yes."""
    folder = tmp_path / "own"
    worker = await fleet.worker("decode-0", folder)
    await fleet.store(worker, folder, {1: "acme:", 2: "other:"})
    fleet.path(folder, 3).write_bytes(b"unknown")
    await eventually(lambda: keeper_of(worker).describe()["files"] == 3, "it is listed")  # type: ignore[union-attr]
    result = await fleet.here.run(kv, "erase", "--tenant", "acme")
    assert isinstance(result.exception, CallerError)
    assert "give --yes" in str(result.exception)
    monkeypatch.setattr(tenant_blocks, "_has_terminal", lambda: True)
    words = ["erase", *fleet.here.words, "--tenant", "acme"]
    result = await asyncio.to_thread(CliRunner().invoke, kv, words, "n")
    assert (result.exit_code, fleet.files(folder)) == (1, {1, 2, 3})
    assert "Erase 1 block of tenant acme, and 1 block of which no tenant is known, from 1 pool? [y/N]" in result.stderr
    result = await asyncio.to_thread(CliRunner().invoke, kv, words, "y")
    assert (result.exit_code, fleet.files(folder)) == (0, {2})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "give either --tenant NAME or --no-tenant"),
        (("--tenant", "a", "--no-tenant"), "give either --tenant NAME or --no-tenant"),
        (("--tenant", "a b"), "--tenant: a name has 1 to 64 of"),
    ],
)
def test_wrong_words_are_refused(
    words: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key"
    key.write_text("00" * 32)
    where = ("--nats", "nats://127.0.0.1:1", "--etcd", "127.0.0.1:1", "--key-file", str(key))
    result = CliRunner().invoke(contrail, ["kv", "erase", *where, *words])
    assert isinstance(result.exception, CallerError)
    assert sentence in str(result.exception)
