"""Law: `replay verify` names no difference in the log of a world, whatever its history lost; every decision is true."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    wrong = _differences(found)
    if world.witness.history_kept:
        wrong |= {f"{kind} not judged": count for kind, count in found.unjudged.items()}
        wrong["breaks"] = len(found.proof.breaks)
    wrong = {name: count for name, count in wrong.items() if count}
    if wrong:
        raise Broken(f"verify finds {wrong} in a log of true decisions: {found.differences[:1]}")
    world.witness.counts["verified"] = found.verified


def _differences(found: VerifyResult) -> dict[str, int]:
    """Counts of what can only be wrong if a decision, a fold, or verify itself is."""
    return {
        "decisions": found.different,
        "refusals": found.refusals.different,
        "folds": found.folds.different,
        "prefills": found.prefills.differ,
        "unaccounted": found.unaccounted + found.refusals.unaccounted,
        "unexplained": len(found.counts.unexplained),
    }
