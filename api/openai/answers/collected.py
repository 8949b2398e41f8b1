"""Collected: all that one choice said, for answers that are not streamed."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

from api.openai.answers.choice import Choice
from api.openai.answers.said import Step
from core.generation import TokenLogprobs


@dataclass(slots=True)
class Call:
    """One call of a tool."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Collected:
    """Adding is O(new)."""

    choice: Choice
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, Call] = field(default_factory=dict)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def add(self, step: Step) -> None:
        """The step follows what came before it."""
        self.text.append(step.said.text)
        self.reasoning.append(step.said.reasoning)
        for delta in step.said.tools:
            call = self.calls.setdefault(delta.call, Call())
            call.id, call.name = call.id or delta.id, call.name or delta.name
            call.arguments.append(delta.arguments)
        self.logprobs += step.logprobs
        self.tokens += step.tokens

    def logprobs_count(self) -> int:
        """Tokens of prompt and answer whose logprobs are known."""
        return len(self.logprobs) + len(self.choice.prompt_logprobs)

    def mean_logprob(self) -> float:
        """Of the answer's tokens, an echoed prompt's not counted."""
        own = [entry.logprob for entry in self.logprobs[len(self.logprobs) - len(self.tokens) :]]
        return sum(own) / len(own) if own else 0.0


def best(all_of_them: list[Collected], n: int) -> list[Collected]:
    """For each prompt the `n` whose tokens were likeliest on average, those first."""
    chosen: list[Collected] = []
    for _, same_prompt in groupby(all_of_them, key=lambda it: it.choice.prompt):
        # sorting keeps the order of equal ones
        chosen += sorted(same_prompt, key=lambda it: -it.mean_logprob())[:n]
    return chosen
