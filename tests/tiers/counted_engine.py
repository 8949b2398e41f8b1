"""CountedEngine: a vLLM engine with its own statistics of where cached tokens came from; answers with their waits."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from actors.engines.engine import Engine
from core.generation import GenerateRequest
from core.ids import new_id
from tests.contracts.engine import Answer
from tests.fixtures.engines import ADAPTERS, RecordedEngine, make_adapter
from tests.tiers.case_result import CaseResult

DEVICE = "device"
MILLI = 1000
REFUSED = "refused_"


class Bench(NamedTuple):
    """The place of one case."""

    folder: Path
    """Empty, for this case alone."""
    model: Path
    """A copy of the tiny model that this case may change."""
    rounds: int
    kills: int
    """Rounds of cases in which a process is killed."""

    def adapters(self) -> dict[str, str]:
        """Two adapters by name."""
        home = self.folder / "adapters"
        home.mkdir(exist_ok=True)
        return {name: str(make_adapter(home / name, seed)) for seed, name in enumerate(ADAPTERS)}


class CountedEngine(RecordedEngine):
    """Keeps vLLM's statistics of cached tokens."""

    def __init__(self, model: str, model_path: str, engine_args: Mapping[str, Any], **more: Any) -> None:
        super().__init__(model, model_path, engine_args, **more)
        self.hits: Counter[str] = Counter()
        """Tokens of prompts by source, `device` among them, since the start."""

    def _note(self, stats: Any) -> None:
        super()._note(stats)
        self.hits.update(hits_of(stats))

    def blocks_since(self, before: Counter[str]) -> Counter[str]:
        """Whole blocks by source since then; a part of a block counts as one."""
        size = self.info.block_size
        return Counter({name: -(-(count - before[name]) // size) for name, count in self.hits.items()})

    def refused(self) -> Counter[str]:
        """Files that the disk tier refused, by reason."""
        counts = self.disk_counts().items()
        return Counter({name.removeprefix(REFUSED): count for name, count in counts if name.startswith(REFUSED)})


def hits_of(stats: Any) -> Counter[str]:
    """Tokens that one step took from caches, by source, of vLLM's statistics of the step."""
    found: Counter[str] = Counter()
    if stats.prefix_cache_stats is not None:
        found[DEVICE] += stats.prefix_cache_stats.hits
    if stats.connector_prefix_cache_stats is not None:
        for source, tokens in stats.connector_prefix_cache_stats.hits_by_source.items():
            found[source.value] += tokens
    return found


class TimedAnswer(NamedTuple):
    """An answer, and how long its first token took."""

    answer: Answer
    first_ms: float

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.answer.tokens

    @property
    def cached(self) -> int:
        """Tokens of the prompt."""
        return self.answer.cached_tokens or 0


async def timed(engine: Engine, asked: GenerateRequest) -> TimedAnswer:
    """The whole answer to the request, under a new id."""
    asked = msgspec.structs.replace(asked, id=new_id())
    began, first_ms, tokens, finish, cached = time.monotonic(), 0.0, list[int](), None, None
    async for output in engine.generate(asked):
        if not tokens:
            first_ms = (time.monotonic() - began) * MILLI
        tokens += output.tokens
        finish, cached = output.finish, output.cached_tokens if output.cached_tokens is not None else cached
    return TimedAnswer(Answer(tuple(tokens), finish, cached), first_ms)


async def cold_of(engine: Engine, asked: GenerateRequest) -> TimedAnswer:
    """The answer to the same tokens under a new salt: nothing of it comes from a cache."""
    found = await timed(engine, msgspec.structs.replace(asked, cache_salt=new_id()))
    assert not found.cached, "a new salt found blocks"
    return found


class Watch:
    """Fills in a case's sources and refusals, from its begin on."""

    def __init__(self, case: CaseResult, engine: CountedEngine) -> None:
        self._case, self._engine = case, engine
        self._hits, self._refused = engine.hits.copy(), engine.refused()

    async def end(self) -> CaseResult:
        """The case, with all that its engine found and refused meanwhile."""
        await self._engine.settle()
        self._case.found.update(self._engine.blocks_since(self._hits))
        self._case.refused.update(self._engine.refused() - self._refused)
        return self._case
