"""A deployment of one worker that has a part of a prompt."""

from __future__ import annotations

import pytest

from core.subjects import LOAD
from tests.projections.facts import joined, load, stored
from tests.replay.staged import HASHES, KV, A, Stage


@pytest.fixture
def stage() -> Stage:
    """One worker, with four of the six blocks that are asked for."""
    it = Stage()
    it.say(KV, A, joined("a"), stored(*HASHES[:4]))
    it.say(LOAD, A, load())
    it.replica()
    return it
