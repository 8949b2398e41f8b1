"""Checks of the workers: alike where they must be, and heard of lately. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from actors.membership.registration import Registration
from api.amounts import seconds_text
from api.doctor.finding import OK, PROBLEM, WARNING, Finding
from core.events.kv import PREFILL

STALE_S = 6.0
"""A worker reports its load every two seconds at least."""


def check_workers(registrations: dict[str, Registration | None], heard_s: dict[str, float | None]) -> Iterator[Finding]:
    """By name: what each registered (None: nothing that can be read), and how long ago the log heard its load."""
    serving = {name: it for name, it in registrations.items() if it is None or it.role != PREFILL}
    yield _alike(serving)
    if len(serving) < len(registrations):
        yield _of_use(registrations)
    yield _stale(heard_s)


def _of_use(registrations: dict[str, Registration | None]) -> Finding:
    """Whether each prefill worker has a decode worker that can take its blocks."""
    known = {name: it for name, it in registrations.items() if it is not None and it.kv is not None}
    wanted = {(it.model, it.block_size, it.kv.layout) for it in known.values() if it.role != PREFILL and it.kv}
    there = {name: it for name, it in known.items() if it.role == PREFILL}
    idle = sorted(n for n, it in there.items() if it.kv and (it.model, it.block_size, it.kv.layout) not in wanted)
    facts = {"prefill_workers": sorted(there), "of_no_use": idle}
    if idle:
        text = (
            f"No decode worker can take the blocks of {', '.join(idle)}: start decode workers of the same model, block "
            "size and engine with --remote-prefill, or stop these."
        )
        return Finding("prefill_workers", WARNING, text, facts)
    return Finding("prefill_workers", OK, "Every prefill worker's blocks are of use to a decode worker.", facts)


def _alike(registrations: dict[str, Registration | None]) -> Finding:
    unreadable = sorted(name for name, it in registrations.items() if it is None)
    kinds: dict[str, dict[tuple[str, int, int], list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, it in registrations.items():
        if it is not None:
            kinds[it.model][it.kind].append(name)
    facts = {
        model: [
            {"engine": engine, "block_size": block_size, "context_max": context_max, "workers": sorted(names)}
            for (engine, block_size, context_max), names in by_kind.items()
        ]
        for model, by_kind in kinds.items()
    }
    if unreadable:
        text = f"{', '.join(unreadable)} registered nothing that can be read: it is of another version; restart it."
        return Finding("models", PROBLEM, text, facts)
    if odd := _odd(kinds):
        model, names = odd
        text = (
            f"Workers of model {model} differ in engine, block size or context ({', '.join(names)}): front ends do "
            "not admit those that differ from the first; start them alike."
        )
        return Finding("models", PROBLEM, text, facts)
    said = ", ".join(f"{model} at {next(iter(by_kind))[1]} tokens per block" for model, by_kind in kinds.items())
    text = f"Workers of one model are alike: {said}; the hash seed comes from the one key that all must have."
    return Finding("models", OK, text, facts)


def _odd(kinds: dict[str, dict[tuple[str, int, int], list[str]]]) -> tuple[str, list[str]] | None:
    """The first model whose workers differ, with those of the rarer kinds."""
    for model, by_kind in kinds.items():
        if len(by_kind) > 1:
            usual = max(by_kind.values(), key=len)
            return model, sorted(name for names in by_kind.values() if names is not usual for name in names)
    return None


def _stale(heard_s: dict[str, float | None]) -> Finding:
    stale = sorted(name for name, age_s in heard_s.items() if age_s is None or age_s > STALE_S)
    facts = {"heard_s": {name: None if age is None else round(age, 1) for name, age in heard_s.items()}}
    if stale:
        ages = [heard_s[name] for name in stale]
        longest = "never" if None in ages else f"for {seconds_text(max(age for age in ages if age is not None))}"
        text = (
            f"{', '.join(stale)} has not said its load in the log ({longest}): it counts half at most; see whether it "
            "lives and reaches NATS."
        )
        return Finding("workers_heard", WARNING, text, facts)
    text = f"The log heard of every worker within {STALE_S:g} s." if heard_s else "There is no worker to hear of."
    return Finding("workers_heard", OK, text, facts)
