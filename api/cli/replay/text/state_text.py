"""A state, the difference of two, and a prompt asked of one, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api.cli.output import number_text, text_table
from api.cli.replay.text.estimate_text import SOURCES_ASKED, estimate_lines
from api.cli.replay.text.explain_text import candidates_table, left_out, titled
from core.settings import RoutingSettings
from replay.state_at.route_prompt import PromptRoute
from replay.state_at.state_diff import Participant, StateDiff, WorkerChange
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
NONE = "-"


def state_text(held: StateSummary) -> str:
    """Whose state it is and when, then who was there."""
    names = {each.replica: each.name for each in held.replicas}
    lines = [*_whose(held), f"settings  {_settings(held)}", ""]
    if held.workers:
        lines += text_table(
            _WORKERS, [_worker(each, names) for each in sorted(held.workers, key=_by_name)], "<<<>>>>>>><"
        )
    else:
        lines.append("no worker was there")
    lines.append("")
    if held.replicas:
        lines += text_table(_REPLICAS, [_replica(each) for each in sorted(held.replicas, key=_by_name)], "<>>>>>><")
    else:
        lines.append("no replica was there")
    lines += ["", f"digest    {held.digest}: " + ", ".join(f"{name} {value}" for name, value in held.digests.items())]
    if held.incomplete:
        lines.append(f"          {held.incomplete} sources are unknown until they restate themselves")
    return "\n".join(lines)


def _by_name(each: WorkerSummary | ReplicaSummary) -> tuple[str, str]:
    return each.name, each.worker if isinstance(each, WorkerSummary) else each.replica


def _whose(held: StateSummary) -> list[str]:
    upto = ", ".join(f"{stream}:{seq}" for stream, seq in held.cursor.items())
    seat = held.seat
    cut = [f"          {', '.join(held.cut)}: who was silent since then is not known"] if held.cut else []
    if seat is None:
        return [f"{held.time}  the log up to {upto}", *cut]
    lines = [f"{held.time}  {_believed(seat)}", f"          it had read the log up to {upto}"]
    if seat.ahead_events:
        lines.append(f"          and knew of {seat.ahead_events} events of its own that were not in there")
    return [*lines, *cut, *(f"          in doubt: {doubt}" for doubt in seat.doubts)]


def _believed(seat: BeliefSummary) -> str:
    who = f"{seat.name} ({seat.replica})"
    if seat.request is None:
        return f"{who} had decided nothing that this log knows: the log's own state, and what it had said"
    attempt = f", attempt {seat.attempt}" if seat.attempt else ""
    return f"what {who} believed when it routed {seat.request}{attempt} (routing:{seat.seq})"


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
        f"{worker.active_requests} with {worker.active_blocks:,} blocks",
        f"{worker.prefill_tokens:,} tokens",
        NONE if load is None else str(load.running),
        NONE if load is None else str(load.waiting),
        NONE if load is None or load.age_ms is None else f"{load.age_ms:,} ms ago",
        ", ".join(_remarks(worker, names)),
    )


def _remarks(worker: WorkerSummary, names: dict[str, str]) -> list[str]:
    remarks = [] if worker.cache_known else ["cache unknown"]
    if worker.load is not None and worker.load.draining:
        remarks.append("draining")
    for replica, reasons in worker.local.items():
        said = ", ".join(reasons).replace("_", " ")
        remarks.append(f"{said} to {names.get(replica, replica)}")
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


def difference_text(difference: StateDiff) -> str:
    """What changed, workers first."""
    first, second = difference.time
    moved = ", ".join(f"{count:,} in {stream}" for stream, count in difference.messages.items() if count)
    lines = [f"from {first} to {second}, messages: {moved or 'none'}"]
    if difference.nothing:
        return "\n".join([*lines, "nothing that a state holds has changed"])
    for said, people in (
        ("worker {} joined", difference.workers_joined),
        ("worker {} is gone", difference.workers_gone),
        ("replica {} joined", difference.replicas_joined),
        ("replica {} is gone", difference.replicas_gone),
    ):
        lines += [said.format(_who(each)) for each in people]
    for replica in difference.replicas:
        for name, (before, after) in replica.settings.items():
            lines.append(f"replica {replica.name}: {name} {before} became {after}")
    made = sum(replica.decisions for replica in difference.replicas)
    lines.append(
        f"{made:,} decisions; {difference.requests_started} requests came and are under way, "
        f"{difference.requests_ended} that were are not any more"
    )
    if difference.workers:
        heads = ("worker", "blocks gained", "lost", "requests", "active blocks", "waiting")
        lines += [
            "",
            *text_table(
                heads, [_change(each) for each in sorted(difference.workers, key=lambda each: each.name)], "<>>>>>"
            ),
        ]
    return "\n".join(lines)


def _who(someone: Participant) -> str:
    return f"{someone.name} ({someone.id})"


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


def asked_text(asked: PromptRoute, held: StateSummary) -> str:
    """Where the prompt would have gone, and why."""
    lines = _whose(held)
    goes = "the draw decides; one with seed 0 gives " if asked.drawn else "would go to "
    where = f"{goes}{asked.worker_name} ({asked.worker})" if asked.worker else "no worker could have taken it"
    size = f"{asked.prompt_tokens} tokens, {asked.prompt_blocks} blocks of {asked.block_size}"
    lines += [f"a prompt of {size}, for {asked.model}: {where}", ""]
    if asked.worker:
        lines.append(f"  why      {asked.why}")
        if asked.runner_up is not None:
            lines.append(f"  else     {asked.runner_up.text}")
        lines.append(f"  cached   {asked.predicted_cached_tokens} of its tokens there, or being computed")
        lines += titled(estimate_lines(asked.estimates, SOURCES_ASKED))
    lines += [f"  policy   {asked.policy}; settings: {_changed(asked.settings)}"]
    if asked.candidates:
        lines += ["", *candidates_table(asked.candidates)]
    return "\n".join([*lines, *left_out(asked.excluded)])
