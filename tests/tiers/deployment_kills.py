"""Cases of whole deployments: the keeper, workers and sources of fetches are killed under load, then everything."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]

from actors.engines.engine_adapters import HOME_PREFIX
from actors.engines.kv_events.kv_event_feed import FOLDER_PREFIX
from actors.engines.locked_folder import lock_folder
from actors.engines.vllm.shared_memory import FOLDER, PREFIX
from actors.engines.vllm.vllm_args import environment_with
from core.events import RequestRouted
from core.events.routing import PrefixFetch
from core.ids import new_id
from tests.e2e.deployment import Running, start, up, wait_ready
from tests.tiers.case_result import CaseResult
from tests.tiers.counted_engine import Bench
from tests.tiers.deployment_load import Load, ask, deployment_file, kill, prompts, verified, wait_until

WORKERS = ("decode-0", "decode-1")
CLIENTS = 2
PROMPTS, PROMPT_BLOCKS = 40, 21
"""More than both devices and hosts hold."""
ENGINE_ARGS = {"num_gpu_blocks_override": 129, "max_model_len": 3200}
POOL = {"host": "32MiB", "disk": {"path": "kv", "size": "1GiB", "shared": True}}
FETCH = {"host": "64MiB", "fetch": True}
START_BLOCKS, AT_ONCE = 47, 4
"""Prompts that begin alike: the blocks of their start, and their number."""
OWN_BLOCKS = 40
CALM_S = 3.0
DIES_S = 30.0
TORCH_CACHE = "torchinductor_"
"""One folder for each user of the machine, for all programs with torch; it stays."""
TEMPORARY = "t"
"""The folder for temporary files; short, as names of sockets are."""


async def kills(bench: Bench) -> AsyncIterator[CaseResult]:
    """Two workers with one pool; then everything is killed, and started again."""
    group = {"count": 2, "engine_args": ENGINE_ARGS, "kv_tiers": POOL}
    file = deployment_file(bench.folder, group, {"policy": "kv"})
    with _temporary(bench.folder):
        async with up(bench.folder / "data", "-f", str(file)) as running:
            cold = {tokens: (await ask(running, tokens)).text for tokens in prompts(PROMPTS, PROMPT_BLOCKS, 1)}
            load = Load(running, cold, 2)
            for name, keeps in (("the keeper", True), ("a worker that keeps no pool", False)):
                case = load.case = CaseResult(f"{name} killed with -9, two workers with one pool")
                async with load.by(CLIENTS):
                    for _ in range(bench.kills):
                        await _killed(running, lambda keeps=keeps: _pool_worker(running, keeps=keeps))  # type: ignore[misc]
                        case.kills += 1
                yield case
            yield await verified(running, "replay verify, the run with the pool")


async def fetch_kills(bench: Bench) -> AsyncIterator[CaseResult]:
    """Two workers that fetch from each other; the one that has the start of the prompts is killed as others ask."""
    group = {"count": 2, "engine_args": ENGINE_ARGS, "kv_tiers": FETCH}
    file = deployment_file(bench.folder, group, {"policy": "time"})
    with _temporary(bench.folder):
        async with up(bench.folder / "data", "-f", str(file)) as running:
            case = CaseResult("a source of fetches killed with -9, two workers")
            for number in range(3 * bench.kills):
                await _burst(running, case, kills=number % 3 == 1)
            await _count_fetches(running, case)
            yield case
            yield await verified(running, "replay verify, the run with fetches")


def _pool_worker(running: Running, *, keeps: bool) -> str:
    """The name of the worker that keeps the pool, or of the other one; LookupError while both or none says so."""
    said = {name: bool((running.state(name)["pool"] or {}).get("keeps")) for name in WORKERS}
    if sorted(said.values()) != [False, True]:
        raise LookupError(f"keepers: {said}")
    return next(name for name, each in said.items() if each == keeps)


async def _killed(running: Running, choose: Callable[[], str]) -> None:
    """A worker was killed under load, and its next life serves beside the other one."""
    chosen = list[str]()

    def is_chosen() -> bool:
        chosen.append(choose())
        return True

    await wait_until(is_chosen, "a keeper")
    await asyncio.sleep(CALM_S * random.Random(new_id()).random())
    before = kill(running, chosen[-1])
    await wait_until(lambda: _serving(running) - {before} and len(_serving(running) - {before}) == 2, "both workers")
    await asyncio.sleep(CALM_S)


def _serving(running: Running) -> set[str]:
    """The ids of workers that the front end can use."""
    return {*running.state("frontend-0")["workers"]}


async def _burst(running: Running, case: CaseResult, *, kills: bool) -> None:
    """Prompts that begin alike are asked at once, once one worker has their start; that one is killed meanwhile, or
    not. Each text is compared with the one under a new salt."""
    (begin,) = prompts(1, START_BLOCKS, 3)
    begin = begin[: START_BLOCKS * 32]
    await ask(running, (*begin, 5))
    await asyncio.sleep(1)
    holder = (await _decisions(running))[-1].worker
    asked = [(*begin, *rest) for rest in prompts(AT_ONCE, OWN_BLOCKS, 4)]
    asking = [asyncio.create_task(ask(running, tokens)) for tokens in asked]
    if kills:
        await asyncio.sleep(random.Random(new_id()).random())
        kill(running, running.workers()[holder])
        case.kills += 1
    found = await asyncio.gather(*asking)
    if kills:
        await wait_until(lambda: len(_serving(running) - {holder}) == 2, "both workers")
    for tokens, each in zip(asked, found, strict=True):
        cold = await ask(running, tokens, new_id())
        case.expect(not cold.cached, "a new salt found blocks")
        case.add(is_right=each.text == cold.text, waited_ms=each.first_ms)
        case.found["caches"] += each.cached // 32


async def _decisions(running: Running) -> list[RequestRouted]:
    return [event for event in await running.events("routing") if isinstance(event, RequestRouted)]


async def _count_fetches(running: Running, case: CaseResult) -> None:
    chosen = [
        event for event in await _decisions(running) if isinstance(event.fetch, PrefixFetch) and event.fetch.source
    ]
    said: dict[str, Any] = running.state("frontend-0")["fetches"]
    case.notes.append(f"{len(chosen)} decisions had a fetch, {said['failed']} fetches failed")
    case.expect(chosen, "no decision had a fetch")


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """Processes that are started meanwhile have a folder of their own for temporary files."""
    home = folder / TEMPORARY
    home.mkdir()
    with environment_with({"TMPDIR": str(home)}):
        yield home


async def everything(bench: Bench) -> AsyncIterator[CaseResult]:
    """All processes of a deployment are killed with -9, in turn while engines start and under load; the next start,
    ended in order, leaves nothing of ours, and everything of others."""
    group = {"count": 1, "engine_args": ENGINE_ARGS, "kv_tiers": POOL, "adapters": _adapters(bench)}
    file, data = deployment_file(bench.folder, group, {"policy": "kv"}), bench.folder / "data"
    case = CaseResult("SIGKILL of everything, then a start and an end in order")
    most, cold = 0, dict[tuple[int, ...], str]()
    with _temporary(bench.folder) as home, other_files(home) as others:
        for number in range(bench.kills):
            running = start(data, "-f", str(file))
            try:
                if number % 2 == 0:
                    await wait_until(lambda: others.left() or _in_memory(), "an engine that starts")
                    await asyncio.sleep(5 * random.Random(new_id()).random())
                else:
                    await wait_ready(running)
                    load = Load(running, dict.fromkeys(prompts(4, PROMPT_BLOCKS, 5), ""), 6)
                    async with load.by(CLIENTS):
                        await asyncio.sleep(CALM_S)
                        await kill_everything(running)
            finally:
                await kill_everything(running)
                await running.openai.close()
            case.kills += 1
            memory = _in_memory()
            most = max(most, len(others.left()) + len(memory))
            async with up(data, "-f", str(file)) as again:
                for tokens in cold or prompts(4, PROMPT_BLOCKS, 7):
                    found = await ask(again, tokens)
                    case.add(is_right=found.text == cold.setdefault(tokens, found.text), waited_ms=found.first_ms)
                    case.found["caches"] += found.cached // 32
            left = others.left()
            case.expect(not left, f"left in the folder for temporary files: {sorted(left)}")
            kept = memory & _in_memory()
            case.expect(not kept, f"left in memory: {sorted(kept)}")
            case.expect(not others.gone(), f"of others, gone: {others.gone()}")
    case.notes.append(
        f"a kill left up to {most} files and folders, {len(others.folders) + len(others.memory)} of others stayed"
    )
    yield case


def _adapters(bench: Bench) -> list[dict[str, str]]:
    """As a deployment's file has them."""
    return [{"name": name, "path": path} for name, path in bench.adapters().items()]


async def kill_everything(running: Running) -> None:
    """No process of the deployment is left: none of them had a chance to end in order."""
    processes = list[psutil.Process]()
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(running.process.pid)
        processes = [root, *root.children(recursive=True)]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    await asyncio.to_thread(running.process.wait, DIES_S)
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes[1:], DIES_S)
    assert not alive, f"processes outlive SIGKILL: {alive}"


def _in_memory() -> set[str]:
    """Engines' files of our kind in /dev/shm that no process has mapped."""
    found = {str(path) for path in FOLDER.glob(f"{PREFIX}*.mmap")}
    for process in psutil.process_iter():
        if not found:
            break
        with suppress(psutil.Error, OSError):
            found -= {each.path for each in process.memory_maps()} | {each.path for each in process.open_files()}
    return found


class OtherFiles(NamedTuple):
    """Files and folders of other programs, and of live processes of ours, with names like ours."""

    home: Path
    """The folder for temporary files."""
    folders: list[Path]
    """In it, each with a file."""
    memory: list[Path]

    def left(self) -> set[str]:
        """Names in the folder for temporary files that are not those of others."""
        names = {path.name for path in self.home.iterdir() if path not in self.folders}
        return {name for name in names if not name.startswith(TORCH_CACHE)}

    def gone(self) -> list[str]:
        """Those of which something is missing."""
        return [
            str(path) for path in [*self.folders, *self.memory] if not (path.is_file() or (path / "file").is_file())
        ]


@contextmanager
def other_files(home: Path) -> Iterator[OtherFiles]:
    """They stand there while the block runs."""
    theirs = FOLDER / f"vllm_offload_other-{new_id()}.mmap"
    live = FOLDER / f"{PREFIX}{new_id()}.mmap"
    names = [f"{FOLDER_PREFIX}of-a-live-process", f"{HOME_PREFIX}of-a-live-process", "contrail-kv-old", "another"]
    folders = [home / name for name in names]
    for folder in folders:
        folder.mkdir()
        (folder / "file").write_text("kept")
    theirs.touch()
    locks = [lock_folder(folder) for folder in folders[:2]]
    try:
        with live.open("wb"):
            yield OtherFiles(home, folders, [theirs, live])
    finally:
        for lock in locks:
            os.close(lock)
        for path in (theirs, live):
            path.unlink(missing_ok=True)
