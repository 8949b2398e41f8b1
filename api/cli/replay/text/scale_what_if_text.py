"""The planner's what-if as text: a row for each combination of settings, and what the figures rest on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from api.cli.quantities import UNKNOWN, count_text, percent_text
from api.cli.renderer import Notes, Table, Text
from core.event_json import time_text
from core.events.scale import SCALE_VERSION
from replay.whatif.scale_figures import ScaleFigures, ScaleWhatIf

HEADS = ("settings", "worker-hours", "mean", "fewest", "most", "started", "drained", "attained, predicted")


def scale_what_if_text(found: ScaleWhatIf) -> Text:
    """The table, the record first, and its basis."""
    first, last = time_text(found.first_ms), time_text(found.last_ms)
    requests = count_text(found.measured.arrivals, "request")
    on = f" on {found.model}" if found.model else ""
    yield f"{count_text(found.decisions, 'decision')} of the planner{on} from {first} to {last}, {requests}"
    yield ""
    yield Table(HEADS, list(map(_row, (found.recorded, *found.scenarios))), "<" + ">" * (len(HEADS) - 1))
    yield from ("", Notes("What this rests on:", _basis(found)))


def scale_what_if_json(found: ScaleWhatIf) -> dict[str, Any]:
    """All figures with the changes of size, and the shares."""
    values = msgspec.structs.asdict(found)
    if not found.model:
        del values["model"]
    return {
        **values,
        "measured": _with_shares(found.measured),
        "recorded": _with_shares(found.recorded),
        "scenarios": list(map(_with_shares, found.scenarios)),
    }


def _with_shares(figures: Any) -> dict[str, Any]:
    return {**msgspec.structs.asdict(figures), "attainment": figures.attainment}


def _row(it: ScaleFigures) -> tuple[str, ...]:
    counts = (it.workers_min, it.workers_max, it.started, it.drained)
    return (
        it.label,
        f"{it.worker_hours:,.2f}",
        f"{it.workers_mean:.2f}",
        *(f"{count:,}" for count in counts),
        _share(it.attainment),
    )


def _share(attainment: float | None) -> str:
    return UNKNOWN if attainment is None else percent_text(attainment, 2)


def _basis(found: ScaleWhatIf) -> Iterator[str]:
    measured, recorded = found.measured, found.recorded
    yield (
        "Attainment is a prediction of the planner's own queue model, for the bounds of each row's settings. It is not "
        "measured, and requests that wait from one period to the next are not carried over."
    )
    if measured.attainment is not None:
        yield (
            f"Of the recorded requests that ended, {_share(measured.attainment)} were measured within the bounds that "
            f"counted then. The model predicts {_share(recorded.attainment)} for the recorded fleet: the difference is "
            "its error here."
        )
    low, high = (each / 1000 for each in found.startup_ms)
    startup = f"{low:g} s" if low == high else f"{low:g} to {high:g} s"
    yield (
        f"The fleet's answer is modelled: an ordered worker is ready after {startup}, or after startup_s where a row "
        "has it. None fails, and a worker that drains leaves at once."
    )
    yield (
        "Demand, waiting requests, cache hits and sizes of requests stay as recorded. In another fleet, requests would "
        "wait longer or shorter, and caches would hold other prompts."
    )
    yield f"All rows but the first are decided by rules of version {SCALE_VERSION}, and begin with the recorded fleet."
    if found.model:
        yield f"Models other than {found.model} keep the devices that they had."
    if found.left_out:
        yield f"{count_text(found.left_out, 'decision')} left out: the log lacks settings or speeds before them."
