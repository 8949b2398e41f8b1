"""Garbage: how often a server looks for objects that only hold each other.

CPython looks through the newest after every 700 that were made, and now and then through all that live. In a front end
that is 5 to 8 % of its time, and 40 ms at once, mostly for libraries and folds that stay until its end.
"""

from __future__ import annotations

import gc

NEW_MAX = 5_000
"""So many objects more than were given up, and the newest are looked through."""
ROUNDS = 5
"""After so many such looks one goes further back, and after so many of those one through all made since the start."""


def collect_rarely() -> None:
    """What lives now is never looked through again, what is made from now on seldom; takes some 50 ms. For servers that
    are set up: what they give up is mostly given back at once, by its count."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_MAX, ROUNDS, ROUNDS)
