"""A server that is set up does not look through what lives for as long as it does."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from api.garbage import NEW_MAX, ROUNDS, collect_rarely

kept = [[] for _ in range(50_000)]
loop = []
loop.append(loop)
del loop
collect_rarely()
assert gc.get_freeze_count() >= 50_000, "what lives is looked through no more"
assert gc.get_threshold() == (NEW_MAX, ROUNDS, ROUNDS)

seen = []
gc.callbacks.append(lambda phase, info: seen.append(info.get("collected", 0)))
for _ in range(3 * NEW_MAX):
    loop = []
    loop.append(loop)
assert sum(seen) >= NEW_MAX, "what only holds itself goes"
"""


def test_what_lives_is_left_alone_and_what_is_lost_goes() -> None:
    """In a process of its own: it is for all of one."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
