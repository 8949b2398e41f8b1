"""`python -m tests.simulation --seed 1234` shows one world again; `--seeds 10000 --first 0` looks at many."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from ast import literal_eval

from tests.simulation.run import Failed, simulate

GARBAGE_AFTER = 50_000
"""Objects between two looks for garbage: worlds are short, and a tenth of their time went into looking."""


def main() -> int:
    """0 if every law held in every world."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="one world")
    parser.add_argument("--seeds", type=int, default=1000, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first one's seed")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a field of Options")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds) if given.seed is None else [given.seed]
    changes = {name: literal_eval(value) for name, _, value in (each.partition("=") for each in given.set)}
    gc.set_threshold(GARBAGE_AFTER)
    failed, began_s = 0, time.process_time()
    for number, seed in enumerate(seeds, 1):
        try:
            outcome = simulate(seed, changes)
        except Failed as error:
            failed += 1
            sys.stdout.write(f"{error}\n")
            sys.stdout.flush()
            if not given.keep_going:
                break
        else:
            if given.seed is not None:
                sys.stdout.write(f"{outcome}\n")
        if number % 100 == 0:
            each_ms = (time.process_time() - began_s) / number * 1000
            sys.stderr.write(f"{number} worlds, {failed} failed, {each_ms:.1f} ms each\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
