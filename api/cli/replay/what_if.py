"""`contrail replay what-if`: the recorded history decided again under other settings, and what that would have won."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import click
from click.core import ParameterSource

from api.cli.options import MOMENT_HELP, RecordingRange, pairs, sweeps
from api.cli.output import print_result, show_decision_progress
from api.cli.replay.closed_loop import ClosedLoopArguments, closed_loop_options, run_again
from api.cli.replay.recording_source import RecordingSource, positions, recording_options
from api.cli.replay.scale_what_if import ScaleArguments, scale_options, size_again
from api.cli.replay.text.closed_loop_text import closed_loop_json, closed_loop_text
from api.cli.replay.text.scale_what_if_text import scale_what_if_json, scale_what_if_text
from api.cli.replay.text.what_if_text import left_out_texts, what_if_json, what_if_text
from core.errors import CallerError
from core.settings import POLICIES
from replay.recording.moment import parse_moment
from replay.simulate.charts import sizes_plot
from replay.whatif.outcome import Outcome, ranked
from replay.whatif.scenario import USUAL_SCENARIOS, Scenario, scenarios
from replay.whatif.whatif import what_if as decide_again

WORST = 5


@click.command("what-if")
@recording_options
@click.option("--from", "start", help=MOMENT_HELP)
@click.option("--to", "end", help="MOMENT up to which, not included.")
@click.option("--set", "given", multiple=True, metavar="KEY=VALUE", help="Decide under this setting; repeat for more.")
@click.option("--policy", help=f"Decide by this policy: {', '.join(POLICIES)}.")
@click.option("--without", multiple=True, metavar="WORKER", help="As if this worker, by name or id, were not there.")
@click.option("--lag", "lag_ms", type=int, default=0, metavar="MS", help="As if events were known so much later.")
@click.option("--try", "tries", multiple=True, metavar="KEY=VALUE,…", help="A scenario to compare; repeat for more.")
@click.option("--sweep", "swept", multiple=True, metavar="KEY=A,B,…", help="A scenario per value, or combination.")
@click.option("--recorded-load", is_flag=True, hidden=True)
@click.option("--worst", type=click.IntRange(0), default=WORST, show_default=True, help="How many cases to show.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
@click.option("--changes", is_flag=True, help="In JSON: every decision that changes.")
@closed_loop_options
@scale_options
def what_if(
    source: RecordingSource,
    start: str | None,
    end: str | None,
    given: tuple[str, ...],
    policy: str | None,
    without: tuple[str, ...],
    lag_ms: int,
    tries: tuple[str, ...],
    swept: tuple[str, ...],
    worst: int,
    loop: ClosedLoopArguments | None,
    sizing: ScaleArguments | None,
    *,
    recorded_load: bool,
    as_json: bool,
    changes: bool,
) -> None:
    """Decide the recorded requests again under other settings, and compare the outcomes.

    Several scenarios (--try, --sweep) make one table, the best first. Without any option, the usual ones are tried:
    weights of `time` and of `kv`, and the simpler policies.
    Milliseconds are estimated from the record itself; caches and loads stay as recorded.

    A new decision does not change the record: caches and durations of requests stay, clients send follow-ups at the
    same time, and refused or held requests stay refused or held. So a scenario finds too few cached blocks where it
    moves requests, and too little waiting where it crowds them. Trust small changes of weights more than another
    policy, and repeat the question with --closed-loop.

    With --closed-loop the requests run again on simulated engines that are as fast as the record shows, with caches,
    queues and times. The recorded settings run too: compared with the record, they show the error of the simulation.
    A request that continues an earlier prompt arrives as long after the earlier answer as in the record; with
    --open-arrivals all requests arrive at their recorded times. Caches begin empty; requests before --from run
    without being counted. The whole log of a deployment is read: use `contrail export` for a part.

    With --scale the planner's decisions are made again instead, from the same demand: the sizes of the fleet, their
    worker-hours, and the attainment that the planner's queue model predicts. --set, --try and --sweep are then settings
    of the planner. It is a model: workers start in the learned time, and queues and caches stay as recorded.

    \b
    contrail replay what-if --log incident.contrail
    contrail replay what-if --policy round-robin --from -1h
    contrail replay what-if --set own_weight=2 --set active_weight=0.2 --worst 20
    contrail replay what-if --policy kv --sweep prefill_weight=1,2,4 --sweep decode_weight=0.5,1
    contrail replay what-if --try policy=kv --try policy=kv,prefill_weight=4 --without decode-1 --lag 250
    contrail replay what-if --closed-loop --log incident.contrail --sweep own_weight=1,2,4
    contrail replay what-if --closed-loop --try policy=time --engine max_seqs=64 --from -1h --json
    contrail replay what-if --scale --slo ttft=500,itl=50 --from -1d
    contrail replay what-if --scale --sweep ttft_ms=500,1000 --sweep max=4,8 --plot sizes.svg
    """
    if recorded_load:
        raise CallerError("--recorded-load is gone: loads are always as recorded here; leave it out")
    if sizing is not None:
        _refuse({"policy", "without", "lag_ms", "worst", "changes", "closed_loop"}, "routes: with --scale")
        sizes = size_again(source, pairs(given), [pairs([text]) for text in tries], sweeps(swept), (start, end), sizing)
        if sizing.plot is not None:
            sizing.plot.write_text(sizes_plot(sizes))
        print_result(scale_what_if_text(sizes), scale_what_if_json(sizes), as_json=as_json)
        return
    base = _base(given, policy, without, lag_ms)
    asked = _asked(base, tries, swept)
    if loop is not None:
        _refuse({"worst", "changes"}, "decisions made again on the record: with --closed-loop")
        answer = run_again(source, asked, (start, end), loop)
        print_result(closed_loop_text(answer), closed_loop_json(answer), as_json=as_json)
        return
    outcomes = _outcomes(source, asked, (start, end), worst, keep_changes=changes and as_json)
    print_result(what_if_text(outcomes), what_if_json(outcomes, changes=changes), as_json=as_json)


def _refuse(names: Collection[str], why: str) -> None:
    """CallerError if an option of these names was given."""
    context = click.get_current_context()
    for option in context.command.params:
        if option.name in names and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise CallerError(f"{option.opts[0]} is of {why}, leave it out")


def _base(given: tuple[str, ...], policy: str | None, without: tuple[str, ...], lag_ms: int) -> dict[str, Any]:
    """The settings that all scenarios share."""
    base = pairs(given)
    if policy is not None:
        base["policy"] = policy
    if without:
        base["without"] = without
    if lag_ms:
        base["delay_ms"] = lag_ms
    return base


def _asked(base: dict[str, Any], tries: tuple[str, ...], swept: tuple[str, ...]) -> list[Scenario]:
    if not base and not tries and not swept:
        return scenarios(base, USUAL_SCENARIOS, {})
    return scenarios(base, [pairs([text]) for text in tries], sweeps(swept))


def _outcomes(
    source: RecordingSource,
    asked: list[Scenario],
    range_: tuple[str | None, str | None],
    worst: int,
    *,
    keep_changes: bool,
) -> list[Outcome]:
    """The best first. CallerError if nothing was decided there."""
    now_ms = source.now_ms
    moments = [parse_moment(text, now_ms) if text is not None else None for text in range_]
    with source.opened(RecordingRange(*moments)) as recording:
        start, end = positions(recording, *moments)
        found = decide_again(
            recording, asked, start, end, show_decision_progress(), worst=worst, keep_changes=keep_changes
        )
    if not found[0].decisions:
        why = "; ".join(left_out_texts(found[0])) or "none is there"
        raise CallerError(f"no decision can be made again in this part of the record: {why}")
    return ranked(found)
