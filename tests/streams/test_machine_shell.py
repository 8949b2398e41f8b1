import asyncio

from core.clock import ManualClock, SystemClock
from core.machine import Tick
from streams.machine_shell import MachineShell


class Echo:
    """Answers an event by commands of its name; an event `at N` asks for a Tick at that time."""

    def __init__(self) -> None:
        self.due_us: int | None = None
        self.seen: list[str] = []

    def step(self, event: str | Tick, now_us: int) -> list[str]:
        if isinstance(event, Tick):
            if self.due_us is None or now_us < self.due_us:
                return []
            self.due_us = None
            self.seen.append("tick")
            return ["ticked"]
        self.seen.append(event)
        name, _, at_us = event.partition(" at ")
        if at_us:
            self.due_us = int(at_us)
        return [f"{name} one", f"{name} two"]


async def test_an_event_raised_by_a_command_is_handled_behind_the_commands_of_the_same_step() -> None:
    done: list[str] = []

    def execute(command: str) -> None:
        done.append(command)
        if command == "first one":
            shell.feed("second")

    shell = MachineShell(Echo(), ManualClock(), execute)
    shell.feed("first")
    assert done == ["first one", "first two", "second one", "second two"]


async def test_a_tick_that_is_due_comes_once_in_the_next_turn_of_the_loop() -> None:
    machine, done = Echo(), list[str]()
    shell = MachineShell(machine, ManualClock(1), done.append)
    shell.feed("a at 1000")
    shell.feed("b")
    assert "ticked" not in done
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert machine.seen == ["a at 1000", "b", "tick"]


async def test_a_tick_comes_at_its_time_and_never_early() -> None:
    clock, machine = SystemClock(), Echo()
    shell = MachineShell(machine, clock, lambda _: None)
    due_us = clock.monotonic_us() + 20_000
    shell.feed(f"a at {due_us}")
    async with asyncio.timeout(5):
        while "tick" not in machine.seen:
            assert clock.monotonic_us() < due_us + 4_000_000
            await asyncio.sleep(0.001)
    assert clock.monotonic_us() >= due_us


async def test_no_tick_comes_where_none_is_wanted_any_more() -> None:
    clock, machine = SystemClock(), Echo()
    shell = MachineShell(machine, clock, lambda _: None)
    shell.feed(f"a at {clock.monotonic_us() + 5_000}")
    machine.due_us = None
    shell.feed("b")
    shell.feed(f"c at {clock.monotonic_us() + 5_000}")
    shell.close()
    await asyncio.sleep(0.02)
    assert "tick" not in machine.seen
