"""Losses: a log loses history in one way after the other, and within a minute after each the rest must be whole.

python -m tests.chaos.loss                     every fault, a table at the end
python -m tests.chaos.loss --fault purged --fault deleted --json loss.json
python -m tests.chaos.loss --fault disk-full --full-s 600

NATS, etcd, two front ends and two simulated workers are real, under light load. It must hold:
1. of the decisions of WINDOW_S, a minute after the fault at the latest, RECOVERED_SHARE verify and none differs;
2. `doctor`, `replicas` and `replay verify` each name the loss, and they name the same losses.

It ends by itself and leaves no process; exit status 1 if a row does not hold.
"""

# ruff: noqa: T201 - it prints for its caller
from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.loss_faults import Fault, faults
from tests.chaos.loss_site import loss_site

BEFORE_S = 8.0
"""Load before the fault."""
NAMED_S = 15.0
"""A loss is named so long after its fault at the latest: heads are compared every 5 s, twice."""
RECOVERY_S = 60.0
WINDOW_S = 8.0
"""Decisions are judged in windows of this length."""
RECOVERED_SHARE = 0.99


class Row(NamedTuple):
    """One fault and what was found after it."""

    fault: str
    after_s: float
    """Time from the fault's end to the start of the window in which enough decisions verify; -1 for none."""
    decisions: int
    """Of that window, or of the last one."""
    verified: int
    different: int
    not_judged: dict[str, int]
    named: dict[str, bool]
    """True for the commands that name the loss."""
    undecided: int
    """Answered requests without a decision in the log, of the whole run."""
    is_lost: bool
    """True if something was lost that is to be named."""
    agree: bool
    """True if all commands name the same losses of history."""
    said: dict[str, list[str]]
    """Sentences of these commands that are not about what is well."""

    @property
    def recovered(self) -> bool:
        return self.after_s >= 0

    @property
    def holds(self) -> bool:
        """True if the log is whole again and each command names the loss."""
        return self.recovered and (all(self.named.values()) or not self.is_lost) and self.agree


async def run(fault: Fault, folder: Path, *, before_s: float = BEFORE_S, window_s: float = WINDOW_S) -> Row:
    """The fault in a deployment of its own."""
    async with fault.disk(folder) as disk, loss_site(folder, disk, **fault.log) as site:
        await asyncio.sleep(before_s)
        await fault.harm(site)
        ended_s = time.monotonic()
        after_s = -1.0
        while after_s < 0:
            began_s, began = time.monotonic() - ended_s, datetime.now(UTC).isoformat(timespec="milliseconds")
            await asyncio.sleep(window_s)
            found = await site.ask("replay", "verify", "--from", began)
            print(f"  {fault.name}: {began_s:.0f} s after: {_counts(found)}", flush=True)
            if _is_recovered(found):
                after_s = began_s
            elif began_s + window_s > RECOVERY_S:
                break
        await site.rest()
        undecided = await site.undecided()
        while True:
            doctor, replicas = await site.ask("doctor"), await site.ask("replicas")
            verified = await site.ask("replay", "verify")
            said = {
                "doctor": sentences_of_doctor(doctor),
                "replicas": sentences_of_replicas(replicas),
                "verify": sentences_of_verify(verified),
            }
            losses = losses_of(doctor, replicas, verified)
            named = {command: any(re.search(fault.names, text) for text in texts) for command, texts in said.items()}
            if all(named.values()) or time.monotonic() - ended_s > NAMED_S:
                break
        return Row(
            fault.name,
            after_s,
            found.get("decisions", 0),
            found.get("verified", 0),
            found.get("different", 0),
            found.get("not_judged", {}),
            named,
            undecided,
            fault.loses or (fault.drops and undecided > 0),
            all(found == losses[0] for found in losses),
            said,
        )


def _is_recovered(found: dict[str, Any]) -> bool:
    decisions = found.get("decisions", 0)
    return bool(decisions) and found["verified"] >= RECOVERED_SHARE * decisions and not found["different"]


def _counts(found: dict[str, Any]) -> str:
    if "error" in found:
        return str(found["error"])
    return (
        f"{found['verified']} of {found['decisions']} verified, {found['different']} different, {found['not_judged']}"
    )


def sentences_of_doctor(found: dict[str, Any]) -> list[str]:
    """Of checks that are not well."""
    return [f"{it['name']}: {it['text']}" for it in found.get("checks", []) if it["status"] != "ok"]


def sentences_of_replicas(found: dict[str, Any]) -> list[str]:
    """All that it says beside the table."""
    refused = [f"{it['name']} refused {text}" for it in found.get("replicas", []) for text in it["refused_snapshots"]]
    dropped = [f"{it['name']} dropped {it['dropped']}" for it in found.get("replicas", []) if it.get("dropped")]
    others = {name: n for it in found.get("replicas", []) for name, n in it["dropped_by_others"].items()}
    dropped += [f"{name} dropped {n}" for name, n in others.items()]
    return [found.get("text", ""), *found.get("losses", []), *refused, *dropped]


def sentences_of_verify(found: dict[str, Any]) -> list[str]:
    """Losses, breaks of chains, gaps, dropped decisions, and reasons for which decisions are not judged."""
    chains = found.get("chains", {})
    gaps = [str(gap.get("text", gap)) for gap in found.get("gaps", [])]
    dropped = (found.get("dropped") or {}).get("decisions", 0)
    more = [f"{dropped} decisions dropped"] if dropped else []
    more += [f"{reason}: {why}" for reason, why in found.get("not_judged_why", {}).items()]
    return [*chains.get("losses", []), *(it["what"] for it in chains.get("breaks", [])), *gaps, *more]


def losses_of(doctor: dict[str, Any], replicas: dict[str, Any], verified: dict[str, Any]) -> list[set[str]]:
    """The losses of history that each command names, without the time at which a replica found them."""
    noted = [loss for it in doctor.get("checks", []) if it["name"] == "losses" for loss in it["facts"]["losses"]]
    named = noted, replicas.get("losses", []), verified.get("chains", {}).get("losses", [])
    return [{text.partition("; found at")[0] for text in texts} for texts in named]


async def main(wanted: argparse.Namespace) -> int:
    """The exit status."""
    known = faults(wanted.full_s)
    rows = []
    for name in wanted.fault or known:
        folder = Path(tempfile.mkdtemp(prefix="contrail-loss-"))
        try:
            rows.append(await run(known[name], folder))
        finally:
            if wanted.keep:
                shutil.copytree(folder, wanted.keep / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("sock*"))
            shutil.rmtree(folder, ignore_errors=True)
        _show(rows[-1])
    if wanted.report:
        wanted.report.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")
    print("\n  fault                 well after   verified of  lost  doctor  replicas  verify  all")
    for row in rows:
        after = f"{row.after_s:.0f} s" if row.recovered else "NEVER"
        names = "  ".join("names " if named else "SILENT" for named in row.named.values())
        names = names if row.is_lost else "(nothing was lost)   "
        names += "  agree " if row.agree else "  DIFFER"
        counts = f"{row.verified:>9d} {row.decisions:>3d} {row.undecided:>5d}"
        print(f"  {row.fault:20s} {after:>11s}  {counts}  {names}  {row.not_judged or ''}")
    return 0 if all(row.holds for row in rows) else 1


def _show(row: Row) -> None:
    for command, texts in row.said.items():
        for text in texts[:6]:
            print(f"    {command:9s} {text[:300]}")


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.loss", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fault", action="append", choices=list(faults()), help="only this one; may be repeated")
    parser.add_argument("--full-s", type=float, default=25.0, help="how long the disk is full")
    parser.add_argument("--json", type=Path, dest="report", help="write the findings there")
    parser.add_argument("--keep", type=Path, help="leave data folders and logs there")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(arguments())))
