"""The simulated engine in a world: it moves blocks, and an outsider can look into its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from actors.engines.engine import CacheChange, CacheStored
from actors.engines.simulated.block_hash_cache import content_behind, content_root
from actors.engines.simulated.engine_state import Submit
from actors.engines.simulated.engine_step import EngineState, step
from actors.engines.simulated.simulated_engine import SimulatedEngine, SimulatedSettings
from core.clock import Clock
from core.generation import GenerateRequest
from core.prompt import Prompt, tokens_to_bytes
from tests.simulation.engine import BLOCK_SIZE, KEY, MODEL
from tests.simulation.options import Options

SLOTS = 4
VOCAB = 4096
LATER_US = 10**12
"""By then whatever an engine was given is done."""


class _Block(NamedTuple):
    """What a block's name stands for."""

    parent: int | None
    tokens: Sequence[int]


def settings_of(options: Options) -> SimulatedSettings:
    """Small and slow, so that a few requests fill it and blocks are soon written over."""
    return SimulatedSettings(
        block_size=BLOCK_SIZE,
        capacity_blocks=options.capacity_blocks,
        max_seqs=SLOTS,
        prefill_us_per_token=options.prefill_us_per_token,
        decode_us_per_step=50_000,
        vocab=VOCAB,
        eos_every=0,
        transfer=True,
        keep_ms=options.keep_ms,
        transfer_us_per_block=1000,
    )


def right_text(request: GenerateRequest, options: Options) -> list[int]:
    """What an engine that nobody ever helped answers: a function of the request alone."""
    state = EngineState(settings_of(options))
    step(state, 0, [Submit(request)])
    return [token for _, output in step(state, LATER_US).outputs for token in output.tokens]


class MovingEngine(SimulatedEngine):
    """Knows what every name in its cache stands for."""

    def __init__(self, clock: Clock, options: Options) -> None:
        super().__init__(MODEL, settings_of(options), clock)
        self._meant: dict[int, _Block] = {}

    async def start(self, on_cache: Callable[[CacheChange], None]) -> None:
        def heard(change: CacheChange) -> None:
            self._note(change)
            on_cache(change)

        await super().start(heard)

    def hashes(self) -> set[int]:
        """Our hashes of all blocks that it holds and that can be reached."""
        held = {name for name, _ in self.state.pool.named()}
        found: set[int] = set()
        for name in held:
            way = self._way(name)
            if all(each in held for each in way):
                tokens = [token for each in way for token in self._meant[each].tokens]
                found.add(Prompt(tokens_to_bytes(tokens), BLOCK_SIZE, KEY.hash_seed).key(len(way)))
        return found

    def wrong_blocks(self) -> int:
        """Blocks in its cache that hold something else than their name says."""
        return sum(block.content != self._right(name) for name, block in self.state.pool.named())

    def _note(self, change: CacheChange) -> None:
        if isinstance(change, CacheStored):
            parent = change.parent
            for number, name in enumerate(change.blocks):
                self._meant[name] = _Block(parent, change.tokens[number * BLOCK_SIZE : (number + 1) * BLOCK_SIZE])
                parent = name

    def _way(self, name: int) -> list[int]:
        """The names from the root to this one."""
        way: list[int] = []
        at: int | None = name
        while at is not None:
            way.insert(0, at)
            at = self._meant[at].parent
        return way

    def _right(self, name: int) -> int:
        content = content_root(VOCAB, BLOCK_SIZE, None)
        for each in self._way(name):
            content = content_behind(content, tokens_to_bytes(self._meant[each].tokens))
        return content
