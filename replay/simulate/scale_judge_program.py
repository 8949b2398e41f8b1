"""The judge's program: it simulates a plan for each line of its standard input, and writes a judgement for each.

It ends with its input. `python -m replay.simulate.scale_judge_program`; the planner starts it, and kills it when it is
late (`actors.planning.judge_process`).
"""

from __future__ import annotations

import os
import resource
import sys

import msgspec

from projections.scaling.judge_plan import JudgePlan
from replay.simulate.scale_judge import judge

MEMORY_BYTES = 1 << 30
"""Most address space of the process; it ends where it needs more. Three runs of 1024 requests take some 80 MB."""
NICE = 10
"""The planner and the workers beside it come first."""


def main() -> None:
    """Answers until the input ends."""
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    decoder = msgspec.json.Decoder(JudgePlan)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(judge(decoder.decode(line))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
