"""What may go wrong in a world, and how often: one value, drawn from the seed or given by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Sizes of a world, probabilities per message, and rates per virtual second while there is chaos."""

    replicas: int = 2
    workers: int = 2
    partitions: int = 1
    """Streams that workers write their caches to."""
    rounds: int = 1
    """Of chaos, each followed by a rest at which all must be whole."""
    chaos_s: float = 8.0
    """Virtual seconds of each round."""
    requests_per_s: float = 4.0
    capacity_blocks: int = 24
    """Of each engine's cache."""

    pass_tokens: int = 0
    """What an engine computes in one pass. With any, the policy is `time` to begin with, and replicas hold requests
    until a worker is free; else it is `kv`."""

    reuse_rates: bool = False
    """Whether workers report drawn reuse rates. If so, the policy is `time` to begin with."""
    candidates_recorded_max: int = 8
    """To begin with."""

    prefill_workers: int = 0
    """With any, all engines move blocks, and the others decode what these computed."""
    keep_ms: int = 3000
    """How long blocks are held for others."""
    prefill_us_per_token: int = 2500
    mixed_up: float = 0.0
    """Share of prefill answers that carry what was made for another job."""

    journals: bool = False
    """Whether replicas keep what waits in files that outlive them."""
    pending_events_max: int = 0
    """What may wait in an outbox; 0 leaves it as it is."""
    snapshot_every_s: float = 0.0
    """0 takes none."""
    restate_every_s: float = 40.0
    """A quarter of a retention time that a world can live to see."""

    instant: float = 0.6
    """Share of messages that take no time."""
    slow: float = 0.05
    """Share of messages that take up to `slow_s`, the rest up to `delay_s`."""
    delay_s: float = 0.05
    slow_s: float = 2.0
    ask_lost: float = 0.0
    """Share of calls to the log that never reach it."""
    answer_lost: float = 0.0
    """Share of calls to the log that are done, without an answer."""
    asked_twice: float = 0.0
    """Share of appends that reach the log once more, later."""
    shuffle: bool = True
    """Whether tasks that can run do so in an order drawn from the seed."""

    middle_evictions: float = 0.1
    """Share of evictions that take a block from the middle of a prefix."""
    cache_gaps: float = 0.0
    """Share of requests after which the engine's events have a gap."""

    kill_worker: float = 0.0
    kill_replica: float = 0.0
    pause_worker: float = 0.0
    """A process stands still for a while, and does not know it."""
    give_blocks_up: float = 0.0
    """A prefill worker's engine lets go of all that it holds for others."""
    part_tcp: float = 0.0
    """A process cannot be reached by the others for a while …"""
    part_log: float = 0.0
    """… or cannot reach the log …"""
    part_registry: float = 0.0
    """… or the registry, so that its lease runs out."""
    lose_lease: float = 0.0
    """A lease is gone though its owner lives."""
    registry_away: float = 0.0
    registry_wiped: float = 0.0
    change_settings: float = 0.0
    log_away: float = 0.0
    """The broker crashes, and comes back with all that it acknowledged …"""
    log_full: float = 0.0
    """… or has no space left for a while …"""
    log_cut: float = 0.0
    """… or has lost the end of a stream …"""
    log_restored: float = 0.0
    """… or is put back to a copy made earlier …"""
    log_remade: float = 0.0
    """… or a stream is made anew, empty."""
    delete_message: float = 0.0
    flip_byte: float = 0.0
    expire_head: float = 0.0
    """Retention takes the start of a stream."""
    verified: bool = False
    """Whether the log is exported at the end, and verified."""
    tamper: float = 0.0
    """A block is added to a replica's index behind its back, once in a world."""

    def __repr__(self) -> str:
        """Only what differs from the defaults."""
        usual = Options()
        changed = {
            f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != getattr(usual, f.name)
        }
        return f"Options({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    @property
    def rates(self) -> dict[str, float]:
        """Faults that strike by themselves, per virtual second."""
        names = (*RATES, *(PREFILL_RATES if self.prefill_workers else ()), "tamper")
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    @property
    def history_kept(self) -> bool:
        """Whether everything that was acknowledged stays in the log as it was."""
        return not any(getattr(self, name) for name in REWRITES)


MESSAGES = {"ask_lost": 0.1, "answer_lost": 0.1, "asked_twice": 0.15, "cache_gaps": 0.05}
"""Probabilities per message or request: the highest that is drawn."""
RATES = {
    "kill_worker": 0.15,
    "kill_replica": 0.15,
    "part_tcp": 0.15,
    "part_log": 0.2,
    "part_registry": 0.15,
    "lose_lease": 0.15,
    "registry_away": 0.1,
    "registry_wiped": 0.1,
    "change_settings": 0.2,
    "log_away": 0.2,
    "log_full": 0.2,
    "log_cut": 0.15,
    "log_restored": 0.1,
    "log_remade": 0.1,
    "delete_message": 0.2,
    "flip_byte": 0.2,
    "expire_head": 0.2,
}
"""Rates per virtual second: the highest that is drawn."""
PREFILL_RATES = {"pause_worker": 0.2, "give_blocks_up": 0.5}
"""The same, where prompts are computed by others."""
PREFILLING = 0.08
"""Share of the worlds in which they are."""
MIXED_UP = 0.3
HOLDING = 0.25
"""Share of the worlds in which requests are held."""
HELD_REQUESTS_PER_S = 12.0
"""There, so that workers are busy."""
REUSING = 0.5
"""Share of the worlds in which workers report drawn reuse rates."""
TAMPERING = 0.3
"""Share of the worlds with several replicas and a kept history in which one replica is tampered with."""
REWRITES = ("log_cut", "log_restored", "log_remade", "delete_message", "flip_byte", "expire_head")
"""Faults after which the log does not hold all that it acknowledged."""
QUIET = 0.35
"""Share of worlds in which history is kept, so that the strictest laws are looked at."""
FAULTS_DRAWN = 0.4
"""Share of the faults that a world has: few at a time find more than all at once."""


def drawn(random_: random.Random, available: frozenset[str]) -> Options:
    """A world of its own for each seed; `available` are the faults that can be made."""
    kept = random_.random() < QUIET
    chosen: dict[str, Any] = {
        name: random_.random() * highest
        for name, highest in (MESSAGES | RATES).items()
        if name in MESSAGES or (name in available and not (kept and name in REWRITES))
        if random_.random() < FAULTS_DRAWN
    }
    replicas = random_.choice((1, 2, 2, 3))
    if kept and replicas > 1 and random_.random() < TAMPERING:
        # nobody restates himself: the replicas alone find out
        chosen |= {"tamper": 0.3, "restate_every_s": 1e6}
    world = replace(
        Options(),
        replicas=replicas,
        journals=random_.random() < 0.5,
        pending_events_max=random_.choice((0, 0, 0, 6, 20)),
        snapshot_every_s=random_.choice((0.0, 3.0)),
        workers=random_.choice((1, 2, 2, 3)),
        partitions=random_.choice((1, 1, 2)),
        instant=random_.choice((0.3, 0.6, 0.9)),
        slow=random_.choice((0.0, 0.02, 0.1)),
        **chosen,
    )
    return replace(world, **_prefilling(random_), **_holding(random_), **_reusing(random_))


def _prefilling(random_: random.Random) -> dict[str, Any]:
    """What there is of it, drawn last: worlds without it are the same as ever."""
    chosen: dict[str, Any] = {
        name: random_.random() * highest for name, highest in PREFILL_RATES.items() if random_.random() < FAULTS_DRAWN
    }
    chosen |= {
        "prefill_workers": random_.choice((1, 2, 2, 3)) if random_.random() < PREFILLING else 0,
        "keep_ms": random_.choice((500, 1500, 3000)),
        "prefill_us_per_token": random_.choice((500, 2500, 10_000)),
        "mixed_up": MIXED_UP * random_.random() if random_.random() < FAULTS_DRAWN else 0.0,
    }
    return chosen


def _holding(random_: random.Random) -> dict[str, Any]:
    """The like, drawn after that."""
    if random_.random() >= HOLDING:
        return {}
    return {"pass_tokens": random_.choice((8, 24, 64)), "requests_per_s": HELD_REQUESTS_PER_S}


def _reusing(random_: random.Random) -> dict[str, Any]:
    """The like, drawn after that."""
    if random_.random() >= REUSING:
        return {}
    return {"reuse_rates": True, "candidates_recorded_max": random_.choice((1, 2, 8))}
