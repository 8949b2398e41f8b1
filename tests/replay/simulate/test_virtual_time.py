"""The agenda: what happens when, and in which order at one time."""

from __future__ import annotations

from functools import partial

from replay.simulate.virtual_time import Agenda


def test_things_happen_in_the_order_of_time() -> None:
    """At one time in the order in which they were put; the time is theirs."""
    agenda, said = Agenda(), list[tuple[str, int]]()

    def say(word: str) -> None:
        said.append((word, agenda.now_us))

    for at_us, word in ((30, "d"), (10, "a"), (20, "b"), (20, "c")):
        agenda.put(at_us, partial(say, word))

    assert [agenda.advance() for _ in range(5)] == [True, True, True, True, False]
    assert said == [("a", 10), ("b", 20), ("c", 20), ("d", 30)]


def test_what_is_late_happens_now() -> None:
    """Time never goes back."""
    agenda, said = Agenda(), list[int]()
    agenda.put(50, lambda: agenda.put(20, lambda: said.append(agenda.now_us)))

    while agenda.advance():
        pass

    assert said == [50]


def test_what_is_cancelled_does_not_happen() -> None:
    """Nor does time stop for it; cancelling what has happened changes nothing."""
    agenda, said = Agenda(), list[str]()
    first = agenda.put(10, lambda: said.append("first"))
    agenda.cancel(agenda.put(20, lambda: said.append("second")))
    while agenda.advance():
        pass
    agenda.cancel(first)

    assert (said, agenda.now_us) == (["first"], 10)
