"""Lists of a bisection in text: a list that stops says how many items are behind."""

from __future__ import annotations

import pytest

from api.cli.renderer import render
from api.cli.replay.text.bisect_text import cache_text, replicas_text
from api.cli.replay.text.verify_text import SHOWN
from replay.bisect.cache_comparison import CacheComparison
from replay.bisect.replica_comparison import Divergence, ReplicaComparison


def divergence(seq: int) -> Divergence:
    return Divergence(seq=seq, replica="a", other="b", stream="kv_0", at_seq=seq, verdict="rebuilt")


@pytest.mark.parametrize("count", [SHOWN, SHOWN + 63])
def test_divergences_beyond_those_shown_are_counted(count: int) -> None:
    """No line if all are shown."""
    found = ReplicaComparison(
        replicas={"a": "edge-0", "b": "edge-1"},
        others=[],
        streams=[],
        divergences=[divergence(seq) for seq in range(1, count + 1)],
        departure=None,
    )
    text = render(replicas_text(found))
    assert text.count("found at routing:") == SHOWN
    assert ("… and 63 more divergences" in text) == (count > SHOWN)
    assert ("… and" in text) == (count > SHOWN)


@pytest.mark.parametrize("count", [SHOWN, SHOWN + 63])
def test_gaps_beyond_those_shown_are_counted(count: int) -> None:
    """No line if all are shown."""
    found = CacheComparison(worker="w", name="decode-0", stream="kv_0", restatements=[], gaps=["kv_0:5"] * count)
    text = render(cache_text([found]))
    assert text.count("missing behind the last restatement: kv_0:5") == SHOWN
    assert ("… and 63 more gaps" in text) == (count > SHOWN)
    assert ("… and" in text) == (count > SHOWN)
