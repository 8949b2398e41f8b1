"""A state, the difference of two, and a prompt asked of one, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from api.cli.quantities import NONE, count_text, number_text, plural
from api.cli.renderer import Facts, Table, Text
from api.cli.replay.text.estimate_text import SOURCES_ASKED, estimate_lines
from api.cli.replay.text.explain_text import SHARED, candidates_table, left_out, size_text, titled
from core.settings import RoutingSettings
from replay.state_at.route_prompt import PromptRoute
from replay.state_at.state_diff import StateDiff, WorkerChange
from replay.state_at.state_summary import BeliefSummary, ReplicaSummary, StateSummary, WorkerSummary

_WORKERS = ("worker", "model", "role", "blocks", "of", "in flight", "to prefill", "running", "waiting", "reported", "")
_REPLICAS = (
    "replica",
    "in flight",
    "decisions",
    "settings",
    "predicted cached",
    "really cached",
    "of prompt tokens",
    "",
)


def state_text(held: StateSummary) -> Text:
    """The state and its time, then the workers and replicas in it."""
    names = {each.replica: each.name for each in held.replicas}
    yield from _header(held)
    yield Facts([("settings", _settings(held))], 10, indent="")
    yield ""
    if held.workers:
        yield Table(_WORKERS, [_worker(each, names) for each in sorted(held.workers, key=_by_name)], "<<<>>>>>>><")
        if any(each.active_requests > 1 for each in held.workers):
            yield SHARED
    else:
        yield "no worker was there"
    yield ""
    if held.replicas:
        yield Table(_REPLICAS, [_replica(each) for each in sorted(held.replicas, key=_by_name)], "<>>>>>><")
    else:
        yield "no replica was there"
    yield ""
    yield Facts(_digests(held), 10, indent="")


def _digests(held: StateSummary) -> Iterator[tuple[str, str]]:
    yield "digest", f"{held.digest}: " + ", ".join(f"{name} {value}" for name, value in held.digests.items())
    if held.incomplete:
        one, many = "source is unknown until it restates itself", "sources are unknown until they restate themselves"
        yield "", f"{held.incomplete} {plural(held.incomplete, one, many)}"


def _by_name(each: WorkerSummary | ReplicaSummary) -> tuple[str, str]:
    return each.name, each.worker if isinstance(each, WorkerSummary) else each.replica


def _header(held: StateSummary) -> Text:
    """The log's state, or what a replica believed."""
    upto = ", ".join(f"{stream}:{seq}" for stream, seq in held.cursor.items())
    belief, more = held.seat, list[str]()
    if belief is None:
        yield f"{held.time}  the log up to {upto}"
    else:
        yield f"{held.time}  {_belief_text(belief)}"
        more.append(f"it had read the log up to {upto}")
        if own := belief.ahead_events:
            events = plural(own, "event of its own that was", "events of its own that were")
            more.append(f"and knew of {own} {events} not in there")
    if held.cut:
        more.append(f"{', '.join(held.cut)}: sources silent since then are unknown")
    if belief is not None:
        more += [f"in doubt: {reason}" for reason in belief.doubts]
    yield Facts([("", line) for line in more], 10, indent="")


def _belief_text(belief: BeliefSummary) -> str:
    who = f"{belief.name} ({belief.replica})"
    if belief.request is None:
        return f"{who} has no earlier decision in this log: the log's own state, and the replica's own settings"
    attempt = f", attempt {belief.attempt}" if belief.attempt else ""
    return f"the view of {who} when it routed {belief.request}{attempt} (routing:{belief.seq})"


def _settings(held: StateSummary) -> str:
    text = _changed(held.settings)
    return f"{text}; replicas go by different ones" if held.settings_differ and held.seat is None else text


def _changed(settings: dict[str, Any]) -> str:
    usual = RoutingSettings().to_mapping()
    changed = [f"{name} {value}" for name, value in settings.items() if usual.get(name) != value]
    return ", ".join(changed) or "the defaults"


def _worker(worker: WorkerSummary, names: dict[str, str]) -> tuple[str, ...]:
    load = worker.load
    return (
        f"{worker.name} ({worker.worker})",
        worker.model,
        worker.role,
        "+".join(f"{count:,} {tier}" if tier != "device" else f"{count:,}" for tier, count in worker.blocks.items())
        or "0",
        number_text(worker.capacity_blocks),
        f"{worker.active_requests} with {count_text(worker.active_blocks, 'block')}",
        count_text(worker.prefill_tokens, "token"),
        NONE if load is None else str(load.running),
        NONE if load is None else str(load.waiting),
        NONE if load is None or load.age_ms is None else f"{load.age_ms:,} ms ago",
        ", ".join(_remarks(worker, names)),
    )


def _remarks(worker: WorkerSummary, names: dict[str, str]) -> list[str]:
    remarks = [] if worker.cache_known else ["cache unknown"]
    remarks += ["cache assumed"] if worker.cache_assumed else []
    if worker.load is not None and worker.load.draining:
        remarks.append("draining")
    for replica, reasons in worker.local.items():
        text = ", ".join(reasons).replace("_", " ")
        remarks.append(f"{text} to {names.get(replica, replica)}")
    return remarks


def _replica(replica: ReplicaSummary) -> tuple[str, ...]:
    reuse = replica.reuse
    return (
        f"{replica.name} ({replica.replica})",
        str(replica.in_flight),
        number_text(sum(replica.decisions.values())),
        f"revision {replica.settings_revision}",
        number_text(reuse.predicted_tokens),
        number_text(reuse.cached_tokens),
        number_text(reuse.prompt_tokens),
        "" if replica.known else "unknown until it restates itself",
    )


# --- differences ---------------------------------------------------------------------------------------------------


def difference_text(difference: StateDiff) -> Text:
    """The changes, workers first."""
    first, second = difference.time
    moved = ", ".join(f"{count:,} in {stream}" for stream, count in difference.messages.items() if count)
    yield f"from {first} to {second}, messages: {moved or 'none'}"
    if difference.nothing:
        yield "nothing has changed in the state"
        return
    for sentence, joined in (
        ("worker {} joined", difference.workers_joined),
        ("worker {} is gone", difference.workers_gone),
        ("replica {} joined", difference.replicas_joined),
        ("replica {} is gone", difference.replicas_gone),
    ):
        yield from (sentence.format(f"{each.name} ({each.id})") for each in joined)
    for replica in difference.replicas:
        for name, (before, after) in replica.settings.items():
            yield f"replica {replica.name}: {name} {before} became {after}"
    made = sum(replica.decisions for replica in difference.replicas)
    started, ended = difference.requests_started, difference.requests_ended
    yield f"{count_text(made, 'decision')}; {count_text(started, 'request')} started, {ended:,} ended"
    if difference.workers:
        heads = ("worker", "blocks gained", "lost", "requests", "active blocks", "waiting")
        rows = [_change(each) for each in sorted(difference.workers, key=lambda each: each.name)]
        yield ""
        yield Table(heads, rows, "<>>>>>")


def _change(change: WorkerChange) -> tuple[str, ...]:
    return (
        f"{change.name} ({change.worker})",
        _tiers(change.blocks_gained),
        _tiers(change.blocks_lost),
        _pair(change.active_requests),
        _pair(change.active_blocks),
        _pair(change.waiting),
    )


def _tiers(blocks: dict[str, int]) -> str:
    return (
        ", ".join(f"{count:,}" if tier == "device" else f"{count:,} {tier}" for tier, count in blocks.items()) or NONE
    )


def _pair(pair: Sequence[int | None]) -> str:
    before, after = (NONE if value is None else f"{value:,}" for value in pair)
    return before if before == after else f"{before} → {after}"


# --- a prompt asked ------------------------------------------------------------------------------------------------


def asked_text(asked: PromptRoute, held: StateSummary) -> Text:
    """The worker that the prompt would have gone to, and the reason."""
    yield from _header(held)
    goes = "the draw decides; one with seed 0 gives " if asked.drawn else "would go to "
    where = f"{goes}{asked.worker_name} ({asked.worker})" if asked.worker else "no worker could have taken it"
    size = size_text(asked.prompt_tokens, asked.prompt_blocks, asked.block_size)
    yield f"a prompt of {size}, for {asked.model}: {where}"
    yield ""
    yield titled(_reasons(asked))
    if asked.candidates:
        yield ""
        yield candidates_table(asked.candidates)
    yield from left_out(asked.excluded)


def _reasons(asked: PromptRoute) -> Iterator[tuple[str, str]]:
    if asked.worker:
        yield "why", asked.why
        if asked.runner_up is not None:
            yield "else", asked.runner_up.text
        yield "cached", f"{asked.predicted_cached_tokens} of its tokens there, or being computed"
        yield from estimate_lines(asked.estimates, SOURCES_ASKED)
    yield "policy", f"{asked.policy}; settings: {_changed(asked.settings)}"
