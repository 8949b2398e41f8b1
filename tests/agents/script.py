"""What the simulated models say: a reply for each point of each conversation that the tests have with a program."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

Reply = dict[str, str]
"""`when` and `say`, as the simulated engine takes them."""

QUESTION = "[question] What is six times seven?"
OTHER_QUESTION = "[question] In other words, how much are six sevens?"
ANSWER = "Six times seven is forty-two."
STORY = "[story] Tell a long story."
STORY_WORDS = 150
LONG_STORY = "[long story] Tell one that has no end."
LONG_STORY_WORDS = 800
NOTES = "Nothing is written here yet.\n"
"""What notes.txt says at first."""
EDIT = "[edit] Replace what notes.txt says by something short."
EDITED = "Short.\n"
FIRST, SECOND = "first.txt", "second.txt"
DONE = "Both files are written."
SEARCH = "[search] Find a tool that lists what is scheduled."
SEARCHED = "Nothing is scheduled."
DELEGATED = "The agent has seen to it."
NUMBERS = 3000
"""So many are printed at once …"""
NUMBERS_LONG = "\n".join(str(number) for number in range(40_000))
"""A file that the small context does not hold."""
TURNS = 9
"""… and so often: more than the small context holds."""
SUMMARY = "[summary] Numbers were printed."
SWELLED = "The numbers are printed."


class Call(NamedTuple):
    """A call of a program's own tool."""

    tool: str
    arguments: dict[str, Any]


Shell = Callable[[str], Call]
"""How a program is asked to run a command."""


def thinking(thought: str, then: str) -> str:
    """An answer behind its reasoning: without that all of it would be reasoning, as models of this kind write."""
    return f"<think>\n{thought}\n</think>\n\n{then}"


def calling(call: Call, thought: str) -> str:
    """A call behind its reasoning, as Hermes' models write it."""
    body = json.dumps({"name": call.tool, "arguments": call.arguments})
    return thinking(thought, f"<tool_call>\n{body}\n</tool_call>")


def story(words: int = STORY_WORDS) -> str:
    """Words that can be counted."""
    return " ".join(f"word{number}" for number in range(words))


def edit() -> str:
    """A change of notes.txt, as aider reads it."""
    return f"notes.txt\n```\n<<<<<<< SEARCH\n{NOTES}=======\n{EDITED}>>>>>>> REPLACE\n```\n"


def loop(program: str) -> str:
    """The prompt for two calls, one after the other."""
    return f"[{program} loop] Write two files, one after the other."


def delegate(program: str) -> str:
    """The prompt for an agent below the program's own."""
    return f"[{program} delegate] Have an agent see to it."


def task(program: str) -> str:
    """What the agent below is asked."""
    return f"[{program} task] Say that it is done."


def swell(program: str) -> str:
    """The prompt for calls without an end."""
    return f"[{program} swell] Print the numbers again and again."


def plain() -> list[Reply]:
    """What any program may be told."""
    return [
        {"when": "[question]", "say": thinking("That is easy.", ANSWER)},
        {"when": "[story]", "say": thinking("A long one.", story())},
        {"when": "[long story]", "say": thinking("A longer one.", story(LONG_STORY_WORDS))},
        {"when": "[edit]", "say": thinking("One line.", edit())},
        {"when": SUMMARY, "say": thinking("Enough.", SWELLED)},
    ]


def delegation(program: str, begin: Call, waiting: list[Reply]) -> list[Reply]:
    """An agent below is begun by that call; `waiting` is what the model says until it hears of the agent's end."""
    return [
        {"when": f"[{program} delegate]", "say": calling(begin, "Somebody else can do that.")},
        {"when": f"[{program} task]", "say": thinking("It is.", f"{program}-agent-ended")},
        *waiting,
        {"when": f"{program}-agent-ended", "say": thinking("It has.", DELEGATED)},
    ]


def conversations(program: str, shell: Shell) -> list[Reply]:
    """What a program that runs commands is told: a loop of two calls, and one that goes on until the context is full.

    What a command prints does not stand in the command, so that a reply waits for its result.
    """
    write = "echo {0}-'d'one > {1} && cat {1}"
    print_numbers = f"seq 1 {NUMBERS} && echo {program}-'s'well-{{0}}. && sleep 0.3"
    first, second = f"{program}-first", f"{program}-second"
    return [
        {"when": f"[{program} loop]", "say": calling(shell(write.format(first, FIRST)), "First the one.")},
        {"when": f"{first}-done", "say": calling(shell(write.format(second, SECOND)), "Then the other.")},
        {"when": f"{second}-done", "say": thinking("That was all.", DONE)},
        {"when": f"[{program} swell]", "say": calling(shell(print_numbers.format(1)), "The numbers, then.")},
        *(
            {"when": f"{program}-swell-{turn}.", "say": calling(shell(print_numbers.format(turn + 1)), "Once more.")}
            for turn in range(1, TURNS)
        ),
        {"when": f"{program}-swell-{TURNS}.", "say": thinking("Enough.", SWELLED)},
    ]
