"""The faults between decode and prefill workers in one process, each so many times; what was counted is printed.

python -m tests.actors.disagg.many --times 100

Exit status 1 if a text was wrong, a block was left in use, or a job open.
"""

# ruff: noqa: T201 - it talks to whoever started it
from __future__ import annotations

import argparse
import asyncio
import logging
import time

from tests.actors.disagg.faults import FAULTS
from tests.actors.disagg.test_faults import again_and_again

NAMES = {fault.__name__: fault for fault in FAULTS}


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.actors.disagg.many", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--times", type=int, default=100, help="each fault so often")
    parser.add_argument("--fault", action="append", choices=NAMES, help="only this one; may be given again")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


async def main(wanted: argparse.Namespace) -> int:
    """The exit status."""
    logging.disable(logging.ERROR)  # what goes wrong is what is wanted
    wrong = 0
    for name in wanted.fault or NAMES:
        began_s = time.monotonic()
        try:
            counts = await again_and_again(NAMES[name], wanted.times, wanted.seed)
            said = ", ".join(f"{count} {what}" for what, count in counts.items())
        except (AssertionError, TimeoutError) as error:
            wrong += 1
            said = f"WRONG: {error!r}"
        print(f"{name:30} {wanted.times} times in {time.monotonic() - began_s:5.1f} s: {said}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(arguments())))
