"""Law: `replay verify` names no difference in the log of a world, whatever its history lost; every decision is true.

A record that the broker changed is true no more, and may be named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.subjects import ROUTING
from replay.recording.recording import Recording
from replay.verify.verify import VerifyResult, verify
from tests.replay.recorded import archived
from tests.simulation.engine import KEY
from tests.simulation.parts import NAMESPACE
from tests.simulation.witness import Broken

if TYPE_CHECKING:
    from tests.simulation.world import World


async def verify_names_no_difference(world: World) -> None:
    """Where history was kept, everything is judged besides, and every chain is whole."""
    if world.witness.tampered:
        return
    path = await archived(world.log, NAMESPACE, KEY, world.folder / "log")
    with Recording.open(path, KEY) as recording:
        found = verify(recording)
        changed = _changed_records(recording, world)
    named = [each for each in found.differences if each.seq not in changed]
    wrong = {"differences": len(named), **_other_differences(found, changed)}
    if world.witness.history_kept:
        wrong |= {f"{kind} not judged": count for kind, count in found.unjudged.items()}
        if world.options.pending_events_max or world.witness.counts.get("killed"):
            # a worker drops what passes the bound, and a killed one what it had not sent: the ask of a job maybe
            del wrong["prefill job not judged"]
        wrong["breaks"] = len(found.proof.breaks)
    wrong = {name: count for name, count in wrong.items() if count}
    if wrong:
        raise Broken(f"verify finds {wrong} in a log of true decisions: {named[:1]}")
    world.witness.counts["verified"] = found.verified


def _changed_records(recording: Recording, world: World) -> set[int]:
    """Places of the routing stream at which the broker has other bytes than any replica wrote."""
    return {record.seq for record in recording.archive.read(ROUTING) if record.payload in world.witness.made}


def _other_differences(found: VerifyResult, changed: set[int]) -> dict[str, int]:
    """Counts of what can only be wrong if a fold or verify itself is. A changed record may be no decision any more."""
    return {
        "folds": found.folds.different,
        "prefills": found.prefills.differ,
        "unaccounted": found.unaccounted + found.refusals.unaccounted,
        "unexplained": sum(
            not any(each.after_seq < seq <= each.seq for seq in changed) for each in found.counts.unexplained
        ),
    }
