"""The agenda: what happens when, and in which order at one time."""

from __future__ import annotations

from functools import partial

from core.machine import Tick
from replay.simulate.virtual_time import Agenda, VirtualShell


def test_things_happen_in_the_order_of_time() -> None:
    """At one time in the order in which they were put; the time is theirs."""
    agenda, said = Agenda(), list[tuple[str, int]]()

    def note(word: str) -> None:
        said.append((word, agenda.now_us))

    for at_us, word in ((30, "d"), (10, "a"), (20, "b"), (20, "c")):
        agenda.put(at_us, partial(note, word))

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


class Echo:
    """Answers an event by two commands of its name; an event `N` asks for a Tick at that time."""

    def __init__(self) -> None:
        self.due_us: int | None = None
        self.seen: list[tuple[str, int]] = []

    def step(self, event: str | Tick, now_us: int) -> list[str]:
        if isinstance(event, Tick):
            self.due_us = None
            self.seen.append(("tick", now_us))
            return []
        self.seen.append((event, now_us))
        self.due_us = int(event) if event.isdecimal() else self.due_us
        return [f"{event} one", f"{event} two"]


def test_an_event_raised_by_a_command_comes_behind_the_commands_of_the_same_step() -> None:
    done: list[str] = []

    def execute(command: str) -> None:
        done.append(command)
        if command == "first one":
            shell.feed("second")

    shell = VirtualShell(Echo(), Agenda(), execute)
    shell.feed("first")
    assert done == ["first one", "first two", "second one", "second two"]


def test_a_tick_comes_at_the_time_that_the_machine_wants_last() -> None:
    """None comes after the end."""
    agenda, machine = Agenda(), Echo()
    shell = VirtualShell(machine, agenda, lambda _: None)
    for word in ("50", "70"):
        shell.feed(word)
    while agenda.advance():
        pass
    assert machine.seen == [("50", 0), ("70", 0), ("tick", 70)]
    shell.feed("90")
    shell.close()
    assert not agenda.advance()
