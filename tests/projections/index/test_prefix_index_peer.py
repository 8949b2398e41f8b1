"""The index against Dynamo's RadixTree, where that is installed: $CONTRAIL_PEER_VENV names its environment.

Only histories that remove from the tail: after a middle removal that tree loses the blocks behind it for good.
Without the variable there is nothing to compare with, and this module holds no test.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from random import Random
from typing import Any

from core.ids import WorkerId
from core.prompt import Prompt, tokens_to_bytes
from projections.index.prefix_index import PrefixIndex
from tests.projections.index.index_model import DOCUMENTS, HASHES, LENGTH, PARENTS, SIZE, SLOTS, told

PEER_VENV = os.environ.get("CONTRAIL_PEER_VENV", "")
HISTORIES = 60
STEPS = 80


class Twin:
    """One history, told to our index at once and kept for the peer."""

    def __init__(self, random: Random) -> None:
        self.index = PrefixIndex()
        self.steps: list[list[Any]] = []
        self.found: list[dict[str, int]] = []
        self._random = random
        self._held: dict[int, set[int]] = {worker: set() for worker in range(SLOTS)}
        for _ in range(STEPS):
            worker = random.randrange(SLOTS)
            self._weighted()(worker)
            self._look()

    def _weighted(self) -> Any:
        return self._random.choice((self._store, self._store, self._store, self._remove, self._remove, self._drop))

    def _store(self, worker: int) -> None:
        chain = self._random.choice(HASHES)
        known = next((i for i, block in enumerate(chain) if block not in self._held[worker]), LENGTH)
        new = chain[known : self._random.randint(known, LENGTH)]
        if new:
            self._held[worker].update(new)
            self.index.store(self._id(worker), "device", told(new))
            self.steps.append(["store", worker, PARENTS[new[0]] or None, new])

    def _remove(self, worker: int) -> None:
        held, gone = self._held[worker], []
        for _ in range(self._random.randint(1, LENGTH)):
            leaves = sorted(held - {PARENTS[block] for block in held})
            if leaves:
                gone.append(self._random.choice(leaves))
                held.discard(gone[-1])
        self.index.remove(self._id(worker), "device", told(gone))
        if gone:
            self.steps.append(["remove", worker, gone])

    def _drop(self, worker: int) -> None:
        self._held[worker].clear()
        self.index.drop(self._id(worker))
        self.steps.append(["drop", worker])

    def _look(self) -> None:
        document, tokens = self._random.randrange(len(DOCUMENTS)), self._random.randint(0, LENGTH * SIZE)
        prompt = Prompt(tokens_to_bytes([*DOCUMENTS[document][:tokens], 0]), SIZE, 0)
        self.found.append({str(int(w, 16)): depths[0] for w, depths in self.index.overlaps(prompt).items()})
        self.steps.append(["look", HASHES[document][: tokens // SIZE]])

    @staticmethod
    def _id(worker: int) -> WorkerId:
        return WorkerId(f"{worker:016x}")


def peer_answers(histories: list[list[list[Any]]]) -> list[list[dict[str, int]]]:
    program = Path(__file__).with_name("peer_tree.py")
    said = subprocess.run(
        [Path(PEER_VENV) / "bin" / "python", program],
        input=json.dumps(histories),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answers: list[list[dict[str, int]]] = json.loads(said.stdout)
    return answers


if PEER_VENV:

    def test_the_index_agrees_with_a_radix_tree() -> None:
        """After any stores, drops and removals from the tail, both find the same workers at the same depths."""
        twins = [Twin(Random(seed)) for seed in range(HISTORIES)]
        assert sum(bool(found) for twin in twins for found in twin.found) > HISTORIES * STEPS / 3
        for seed, (twin, answers) in enumerate(zip(twins, peer_answers([t.steps for t in twins]), strict=True)):
            assert twin.found == answers, f"history {seed}"
