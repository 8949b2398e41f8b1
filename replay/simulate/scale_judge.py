"""ScaleJudge: the simulations of a plan, on the router's own machines in virtual time, and their judgement.

Requests are made up, engines have the speed that the planner learned, and all routing settings are the defaults. Equal
plans give equal judgements anywhere: times and durations are integers, and the one draw of a run has the plan's seed.

`python -m replay.simulate.scale_judge` writes a judgement for each plan, which is a line of its standard input, and
ends with that. The planner starts it, and kills it when it is late (`actors.planning.judge_process`).
"""

from __future__ import annotations

import gc
import hashlib
import os
import resource
import sys
from collections.abc import Callable, Iterator

import msgspec
import xxhash

from actors.engines.simulated.pass_timing import MeasuredSettings
from core.events.scale import JUDGE_VERSION, JudgedWorkers, ScaleJudgement
from core.ids import RequestId
from core.prompt import hashes_to_bytes
from projections.scaling.judge_plan import JudgePlan, JudgeRun
from projections.scaling.queue_model import ALL_BP, MILLI
from replay.simulate.options import Options
from replay.simulate.report import ServedRequest, is_attained
from replay.simulate.simulation import simulate
from replay.simulate.workload import Arrival

BLOCK_TOKENS = 64
"""Tokens of a block in a judge's caches."""
SLOTS = 256
"""Requests that an engine runs at once, where that is unknown."""
MEMORY_BYTES = 1 << 30
"""Most address space of the process; it ends where it needs more. Three runs of 1024 requests take some 80 MB."""
NICE = 10
"""The planner and the workers beside it come first."""


def judge(plan: JudgePlan, progress: Callable[[int, int], None] = lambda _done, _of: None) -> ScaleJudgement:
    """The judgement of the plan. Some seconds: a run has as many requests as `QueueModel` has arrivals at most."""
    digest = hashlib.blake2b(digest_size=16)
    found = []
    for run in plan.runs:
        result = simulate(_options(plan, run), _arrivals(plan, run), progress)
        digest.update(result.digest.encode())
        found.append(_judged(plan, run, result.served))
        del result
        gc.collect()  # a simulation around this one has the collector paused, and each run has cycles of some 20 MB
    return ScaleJudgement(
        asked_ms=plan.asked_ms,
        rate_m=plan.rate_m,
        workers=tuple(found),
        digest=digest.hexdigest(),
        absent="",
        version=JUDGE_VERSION,
    )


def _judged(plan: JudgePlan, run: JudgeRun, served: list[ServedRequest]) -> JudgedWorkers:
    counted = served[plan.warm :]
    attained = sum(is_attained(each, plan.ttft_ms * MILLI, plan.itl_ms * MILLI) for each in counted)
    cached = sum(each.cached_tokens for each in counted)
    prompt = max(1, sum(each.prompt_tokens for each in counted))
    return JudgedWorkers(run.workers, attained * ALL_BP // len(counted), cached * ALL_BP // prompt)


def _options(plan: JudgePlan, run: JudgeRun) -> Options:
    it = plan.capacity
    blocks = max(1, it.room_tokens // BLOCK_TOKENS)
    engine = MeasuredSettings(
        block_size=BLOCK_TOKENS,
        capacity_blocks=blocks,
        context_max=max(2, blocks * BLOCK_TOKENS),
        max_seqs=it.slots or SLOTS,
        batched_tokens_max=it.pass_tokens,
        eos_every=0,
        capacity=it,
    )
    return Options(workers=run.part, engine=engine, seed=plan.asked_ms)


def _arrivals(plan: JudgePlan, run: JudgeRun) -> Iterator[Arrival]:
    columns = zip(
        run.times_us, plan.prompt_tokens, plan.followed_tokens, plan.output_tokens, plan.families, strict=True
    )
    starts: dict[int, list[int]] = {}
    for number, (at_us, prompt, followed, output, family) in enumerate(columns):
        blocks = prompt // BLOCK_TOKENS
        shared = min(blocks, followed // BLOCK_TOKENS)
        start = starts.setdefault(family, [])
        start += (_block("family", family, depth) for depth in range(len(start), shared))
        own = (_block("own", number, depth) for depth in range(shared, blocks))
        yield Arrival(
            id=RequestId(f"judged-{number:04}"),
            at_us=at_us,
            prompt_tokens=max(1, prompt),
            hashes=hashes_to_bytes([*start[:shared], *own]),
            output_tokens=output,
        )


def _block(kind: str, number: int, depth: int) -> int:
    found: int = xxhash.xxh3_64_intdigest(f"{kind}/{number}/{depth}".encode())
    return found


def main() -> None:
    """Answers until the input ends."""
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    decoder = msgspec.json.Decoder(JudgePlan)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(judge(decoder.decode(line))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
