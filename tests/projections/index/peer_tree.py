"""Dynamo's RadixTree, asked: a program for an environment that has `ai-dynamo-runtime`, and nothing of ours.

Standard input: a JSON list of histories, each a list of steps: ["store", worker, parent or null, hashes],
["remove", worker, hashes], ["drop", worker], ["look", hashes]. Standard output: per history and look, worker to depth.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


class Tree:
    """One tree, told of one history."""

    def __init__(self) -> None:
        self._tree: Any = importlib.import_module("dynamo.llm").RadixTree()
        self._events = 0

    def tell(self, worker: int, data: dict[str, Any]) -> None:
        self._events += 1
        self._tree.apply_event(worker, json.dumps({"event_id": self._events, "data": data}).encode())

    def store(self, worker: int, parent: int | None, hashes: list[int]) -> None:
        blocks = [{"block_hash": each, "tokens_hash": each} for each in hashes]
        self.tell(worker, {"stored": {"parent_hash": parent, "blocks": blocks}})

    def remove(self, worker: int, hashes: list[int]) -> None:
        self.tell(worker, {"removed": {"block_hashes": hashes}})

    def drop(self, worker: int) -> None:
        self._tree.remove_worker(worker)

    def look(self, hashes: list[int]) -> dict[int, int]:
        return {worker: depth for (worker, _), depth in self._tree.find_matches(hashes).scores.items()}


def main() -> None:
    answers = []
    for history in json.load(sys.stdin):
        tree = Tree()
        answers.append([tree.look(*given) for kind, *given in history if kind == "look" or getattr(tree, kind)(*given)])
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
