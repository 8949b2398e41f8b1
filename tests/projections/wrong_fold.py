"""A fold that went wrong, as after a defect or a flipped bit."""

from __future__ import annotations

from core.block_spans import single
from core.ids import WorkerId
from projections.folds.state import State


def corrupt(state: State, worker: WorkerId, block: int) -> None:
    """The last message of the worker's stream was folded wrongly: the worker has a block that no message stored."""
    stream, fold = next((stream, fold) for stream, fold in state.kv.items() if worker in fold.alive)
    fold.index.store(worker, "device", single([block]))
    fold._account(worker, fold.members[worker])
    position = state.cursor[stream]
    point = state.point(stream, position.seq)
    if point is not None:
        state._points[stream].note((*position, fold.digest, point.head, point.complete))
