"""One world: a log, a registry, workers and replicas as processes, clients, and what goes wrong."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from core.errors import Unavailable
from core.events.kv import PREFILL
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId, StreamName
from core.models import GenerationFailed, NoWorkers, Overloaded, UnknownModel
from core.prompt import tokens_to_bytes
from core.subjects import JOBS, LOAD, ROUTING, SNAPSHOTS, kv_stream
from projections.folds.jobs_fold import JobsFold
from streams.log import Record
from streams.memory.memory_log import MemoryLog
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from streams.memory.memory_stream import MemoryStream
from tests.output_stream import generate
from tests.simulation import faults
from tests.simulation.engine import BLOCK_SIZE, MODEL
from tests.simulation.loop import Process, VirtualClock, VirtualLoop
from tests.simulation.moving_engine import right_text
from tests.simulation.network import Network
from tests.simulation.options import Options
from tests.simulation.parts import LEASE_MS, NAMESPACE, Part, ReplicaPart, WorkerPart
from tests.simulation.patience import drawn_s, until_gone
from tests.simulation.remote_log import Broker, RemoteLog
from tests.simulation.remote_registry import RemoteRegistry
from tests.simulation.reuse_rates import DrawnReuseRate
from tests.simulation.witness import Broken, Witness

RESTART_S = 5.0
"""A killed process is there again within this time."""
REQUEST_BLOCKS_MAX = 10
LOOK_S = 0.25
"""Between looks at whether the world rests, at first; later looks come less often, up to ..."""
LOOK_MAX_S = 2.1
"""... this, which is no multiple of what the parts do again and again."""
WHOLE_WITHIN_S = 150.0
"""After the last fault everything must be whole and quiet within this time."""
NOT_NOW = (NoWorkers, Overloaded, GenerationFailed, UnknownModel)
"""What a client may be told while things go wrong."""


class World:
    """Lives on one virtual loop; `random` draws what happens, in the order in which it happens."""

    def __init__(self, loop: VirtualLoop, seed: int, options: Options, folder: Path, defects: list[str]) -> None:
        self.options = options
        self.folder = folder
        """Where replicas keep what outlives them."""
        self.random = random.Random(f"world {seed}")
        self.loop = loop
        self.host = Process("world")
        self.clock = VirtualClock(loop)
        self.witness = Witness(loop)
        self.network = loop.network = Network(loop, random.Random(f"network {seed}"), options)
        self.log = MemoryLog(NAMESPACE, self.clock)
        self.store = MemoryRegistryStore()
        self.broker = Broker(self.log, self.host, self.network, self.witness, options)
        self.workers: dict[str, WorkerPart] = {}
        self.replicas: dict[str, ReplicaPart] = {}
        self.dead: list[Part] = []
        self.requests: dict[asyncio.Task[bool], Part] = {}
        self.served: dict[str, ReplicaPart] = {}
        """Requests that were served to their end, and by whom."""
        self.defects = defects
        """What the loop or the code under test had to report."""
        self._seed = seed
        self._lives = 0
        self._away: dict[Part, int] = {}
        self._healed = asyncio.Event()
        self._faults: set[asyncio.Task[None]] = set()
        self._numbers = 0

    def __repr__(self) -> str:
        return f"<World {self._seed} at {self.loop.now_s:.3f} s, {len(self.parts)} parts>"

    @property
    def parts(self) -> list[Part]:
        """Every process that lives, workers first."""
        return [*self.workers.values(), *self.replicas.values()]

    @property
    def movers(self) -> list[WorkerPart]:
        """Workers that are up and whose engines move blocks."""
        return [part for part in self.workers.values() if part.started and self.options.prefill_workers]

    def job_folds(self) -> list[tuple[str, JobsFold]]:
        """Who follows the jobs stream, and what came of it."""
        decoding = [(part.name, part.decodes) for part in self.workers.values()]
        return [
            *((part.name, part.router.state.jobs) for part in self.replicas.values()),
            *((name, side._jobs_follower.jobs) for name, side in decoding if side is not None),
        ]

    # --- its parts -----------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Streams are there, and all parts are starting."""
        streams = [kv_stream(partition) for partition in range(self.options.partitions)]
        await self.log.ensure([*streams, JOBS, LOAD, ROUTING, SNAPSHOTS])
        for number in range(self.options.workers):
            self.start_worker(f"worker-{number}")
        for number in range(self.options.prefill_workers):
            self.start_worker(f"{PREFILL}-{number}")
        for number in range(self.options.replicas):
            self.start_replica(f"replica-{number}")

    def start_worker(self, name: str) -> WorkerPart:
        """A new process of that name."""
        part = self.workers[name] = WorkerPart(*self._ways(name))
        chances = self._chances()
        rate = DrawnReuseRate(self._chances_of("reuse")) if self.options.reuse_rates else None
        start = partial(part.start, self._clock(), chances, self.options, self.witness, rate)
        part.spawn(self._begun(part, start))
        return part

    def start_replica(self, name: str) -> ReplicaPart:
        """The same for a replica."""
        part = self.replicas[name] = ReplicaPart(*self._ways(name))
        part.spawn(self._begun(part, partial(part.start, self._clock(), self.options, self.folder, self._listen)))
        return part

    async def killed(self, part: Part) -> None:
        """The process is gone as by kill -9; its lease runs out; another takes its place after a while."""
        if not part.process.alive:
            return
        self.witness.saw("killed", part.name)
        part.process.kill()
        self.network.killed(part.process)
        self.dead.append(part)
        (self.workers if isinstance(part, WorkerPart) else self.replicas).pop(part.name, None)
        self._set_away(part, 1)
        self.loop.call_later(LEASE_MS / 1000, self.expire, part, context=self.host.context)
        await self.lasting(RESTART_S)
        if isinstance(part, WorkerPart):
            self.start_worker(part.name)
        else:
            self.start_replica(part.name)

    def _ways(self, name: str) -> tuple[Process, RemoteLog, RemoteRegistry, VirtualLoop]:
        process = Process(name)
        log = RemoteLog(self.broker, process, self.loop, self._chances())
        registry = RemoteRegistry(MemoryRegistry(self.store), process, self.host, self.network, self.loop)
        return process, log, registry, self.loop

    def _chances(self) -> random.Random:
        self._lives += 1
        return random.Random(f"{self._lives} {self._seed}")

    def _chances_of(self, what: str) -> random.Random:
        """Chances of one thing in the process that was made last."""
        return random.Random(f"{what} {self._lives} {self._seed}")

    def _clock(self) -> VirtualClock:
        return VirtualClock(self.loop, self.random.randrange(-3000, 3000))

    async def _begun(self, part: Part, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.witness.saw("started", part.name)
        try:
            await start()
        except Unavailable as error:
            # as whoever looks after processes does: it ended, and is started again
            self.witness.saw("could not start", part.name, str(error))
            self.loop.create_task(self.killed(part), context=self.host.context)

    def _listen(self, part: ReplicaPart) -> None:
        """The witness hears of every record that the replica folds."""
        runner = part.router.runner
        on_record = runner._on_record

        def folded(record: Record) -> None:
            on_record(record)
            self.witness.folded(part.process, runner.state, record)

        runner._on_record = folded  # type: ignore[method-assign]

    # --- clients -------------------------------------------------------------------------------------------------

    async def clients(self) -> None:
        """Requests come, until cancelled."""
        while True:
            await asyncio.sleep(self.random.expovariate(self.options.requests_per_s))
            if self.replicas:
                self.ask(self.random.choice(list(self.replicas.values())))

    def ask(self, part: ReplicaPart) -> asyncio.Task[bool]:
        """A request is on its way; the result is whether it was served."""
        self._numbers += 1
        request = GenerateRequest(
            id=RequestId(f"r-{self._numbers}"),
            tokens=tokens_to_bytes(self._prompt()),
            sampling=Sampling(max_tokens=self.random.randrange(2, 12)),
        )
        hangs_up = self.random.random() < 0.1
        # a prompt that is computed elsewhere is a job that a client may not wait for
        patience_s = drawn_s(self.random, hangs_up=hangs_up) if self.options.prefill_workers else None
        served = self._served(part, request, hangs_up=hangs_up)
        task = part.spawn(until_gone(served, patience_s, self.witness))
        self.requests[task] = part
        return task

    async def _served(self, part: ReplicaPart, request: GenerateRequest, *, hangs_up: bool) -> bool:
        if not part.started:
            return False
        outputs = generate(part.router, MODEL, request)
        text: list[int] = []
        try:
            async with aclosing(outputs) as stream:
                async for output in stream:
                    text += output.tokens
                    self._read(request, text, ended=output.finish is not None)
                    if hangs_up and output.tokens:
                        break
        except NOT_NOW as error:
            self.witness.saw("refused", part.name, request.id, type(error).__name__)
            return False
        self.witness.saw("served", part.name, request.id)
        self.served[request.id] = part
        return True

    def _read(self, request: GenerateRequest, text: list[int], *, ended: bool) -> None:
        """Law, where engines move blocks: every answer is what the prompt makes, as far as it goes."""
        if not self.options.prefill_workers:
            return
        right = right_text(request, self.options)
        if text != (right if ended else right[: len(text)]):
            self.witness.wrong.append(f"wrong text: {request.id} got {text}, its prompt makes {right}")

    def _prompt(self) -> list[int]:
        """From a small family of prompts that share their beginnings."""
        start, length = self.random.randrange(3), self.random.randrange(1, REQUEST_BLOCKS_MAX * BLOCK_SIZE)
        fork = self.random.randrange(length + 1) // BLOCK_SIZE * BLOCK_SIZE
        branch = self.random.randrange(4)
        return [start * 1000 + at if at < fork else branch * 100 + at for at in range(length)]

    # --- what goes wrong -----------------------------------------------------------------------------------------

    async def strike(self, name: str, rate: float) -> None:
        """This fault comes again and again, until cancelled."""
        fault = faults.FAULTS[name]
        while True:
            await asyncio.sleep(self.random.expovariate(rate))
            if self.parts:
                self.witness.saw(name)
                task = self.loop.create_task(fault(self), context=self.host.context)
                self._faults.add(task)
                task.add_done_callback(self._faults.discard)

    async def lasting(self, longest_s: float, leases: Sequence[Part] = ()) -> None:
        """For as long as a fault lasts: a drawn time, or until all is healed. These leases run out in time."""
        duration_s = self.random.random() * longest_s
        for part in leases:
            if duration_s * 1000 > LEASE_MS:
                self.loop.call_later(LEASE_MS / 1000, self.expire, part, context=self.host.context)
        try:
            async with asyncio.timeout(duration_s):
                await self._healed.wait()
        except TimeoutError:
            pass  # it is over by itself

    async def heal(self) -> None:
        """Nothing goes wrong any more, and what was wrong is mended as far as the world can."""
        self.broker.healed = self.network.healed = True
        self._healed.set()
        while self._faults:
            await asyncio.wait(set(self._faults))
        self.log.away = self.log.full = False

    def resume(self) -> None:
        """Things may go wrong again."""
        self.broker.healed = self.network.healed = False
        self._healed.clear()

    def expire(self, part: Part) -> None:
        """The part's lease is gone with all keys under it, if it has no contact now."""
        inner = part.registry.inner
        if inner.away:
            for change in self.store.below(""):
                if self.store.owner(change.key) is inner:
                    self.store.expire(change.key)

    @contextmanager
    def away_from_registry(self, parts: Sequence[Part]) -> Iterator[None]:
        """These parts have no contact to the registry."""
        for part in parts:
            self._set_away(part, 1)
        try:
            yield
        finally:
            for part in parts:
                self._set_away(part, -1)

    def _set_away(self, part: Part, change: int) -> None:
        self._away[part] = self._away.get(part, 0) + change
        part.registry.inner.away = self._away[part] > 0

    def some_stream(self) -> StreamName:
        """Any whose history can be rewritten."""
        return self.random.choice(sorted(self.log._streams))

    def stream(self, name: StreamName) -> MemoryStream:
        """As the log holds it now."""
        return self.log._streams[name]

    def rewrite(self, stream: StreamName | None, change: Callable[[], None]) -> None:
        """History is changed, and the witness knows what was taken from it."""
        streams = faults.streams_of(self) if stream is None else [stream]
        before = {name: self.stream(name).from_seq(1) for name in streams}
        change()
        for name in streams:
            self.witness.took(name, before[name], self.stream(name).from_seq(1))

    # --- its rest ------------------------------------------------------------------------------------------------

    async def rest(self, laws: Sequence[Callable[[World], None]]) -> None:
        """All is whole and quiet, and these laws hold. Broken if that takes too long.

        As long as history is kept, a law must hold as soon as all is quiet; else sources first have to find out what
        the log lacks.
        """
        until_s = self.loop.now_s + WHOLE_WITHIN_S
        pause_s = LOOK_S
        while unrest := self.unrest() or self._broken(laws):
            self.check_defects()
            if self.loop.now_s > until_s:
                raise Broken(f"{WHOLE_WITHIN_S:g} s after the last fault: {unrest}")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.2, LOOK_MAX_S)

    def check_defects(self) -> None:
        """Broken if the loop or the code under test reported one."""
        if self.defects:
            raise Broken(f"a defect was reported: {self.defects[0]}")
        if self.witness.wrong:
            raise Broken(self.witness.wrong[0])

    def _broken(self, laws: Sequence[Callable[[World], None]]) -> str:
        try:
            for law in laws:
                law(self)
        except Broken as error:
            if self.witness.history_kept and not self.witness.tampered:
                raise
            return str(error)
        return ""

    def unrest(self) -> str:
        """Why the world does not rest; empty if it does."""
        open_ = [task for task, part in self.requests.items() if part.process.alive and not task.done()]
        if open_:
            return f"{len(open_)} requests are open"
        for part in (*self.workers.values(), *self.replicas.values()):
            if part.unrest:
                return f"{part.name}: {part.unrest}"
        for mover in self.movers:
            if why := self.unlinked(mover):
                return f"{mover.name}: {why}"
        for replica in self.replicas.values():
            if why := self.apart(replica):
                return f"{replica.name}: {why}"
        return ""

    def unlinked(self, worker: WorkerPart) -> str:
        """What a decode worker does not know of those who compute for it, and of the queue; empty if it knows all."""
        side = worker.decodes
        if side is None:
            return ""
        able = side.describe()["prefill_workers"]
        if able != sorted(part.id for part in self.movers if part.decodes is None):
            return f"can ask {able}"
        digests = {jobs.digest for name, jobs in self.job_folds() if not name.startswith("worker-")}
        if self.witness.history_kept and side._jobs_follower.jobs.digest not in digests:
            return "has not read all of the jobs stream"
        return ""

    def apart(self, replica: ReplicaPart) -> str:
        """How what a replica has folded differs from what is so; empty if it does not."""
        state = replica.router.state
        for name in faults.streams_of(self):
            end = self.stream(name).last
            if name not in state.cursor or state.cursor[name].seq != end:
                return f"has not read {name} to {end}"
        alive = {member.worker for member in state.alive()}
        if alive != {worker.id for worker in self.workers.values()}:
            return f"takes {sorted(alive)} for alive"
        if extra := state.loads.reports.keys() - alive:
            return f"has loads of {sorted(extra)}, which are over"
        if extra := state.jobs.parts.keys() - alive:
            return f"has jobs of {sorted(extra)}, which are over"
        speaking = {part.replica for part in state.routing.replicas.values() if part.joined and not part.ended}
        if speaking != {each.router.publisher.id for each in self.replicas.values()}:
            return f"takes {sorted(speaking)} for the replicas"
        return ""
