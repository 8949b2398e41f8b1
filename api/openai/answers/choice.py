"""One of a request's answers, as it is being made."""

from __future__ import annotations

from math import nan
from typing import NamedTuple

from api.openai.answers.said import NOTHING, Interpreter, Said, Step
from api.openai.text.transcript import Transcript
from core.generation import GenerateRequest, Output, TokenLogprobs
from core.prompt import tokens_from_bytes


class Echo(NamedTuple):
    """The prompt, to be said before the answer."""

    text: str
    only: bool
    """Nothing of the answer is said: it was generated because an engine does not stop before its first token."""


class Choice:
    """A generation with everything that its text passes through. After `finish` is set its worker can be let go."""

    def __init__(
        self,
        index: int,
        prompt: int,
        request: GenerateRequest,
        transcript: Transcript,
        interpreter: Interpreter | None = None,
        echo: Echo | None = None,
    ) -> None:
        self.index = index
        """Which choice of the request, from 0."""
        self.prompt = prompt
        """Which of its prompts this one answers."""
        self.request = request
        self.transcript = transcript
        self.interpreter = interpreter
        self.reasoning_tokens = 0
        self.prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
        """As the engine told them."""
        self.echo = echo
        self._echoed = echo is None

    def __repr__(self) -> str:
        return f"<Choice {self.index} of {self.request.id}: {self.transcript}>"

    @property
    def finish(self) -> str | None:
        """`stop`, `length` or `tool_calls`, once it is over."""
        if self.echo is not None and self.echo.only and self._echoed:
            return "length"
        called = self.interpreter is not None and self.interpreter.called
        return "tool_calls" if called and self.transcript.finish == "stop" else self.transcript.finish

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answer so far."""
        return 0 if self.echo is not None and self.echo.only else self.transcript.completion_tokens

    def ended(self) -> str | None:
        """How its generation ended, not what was found in its text: this is what the record keeps."""
        return self.transcript.finish or self.finish

    def step(self, output: Output) -> Step:
        """What may leave after this output. GenerationFailed if the worker aborted."""
        transcript = self.transcript
        if output.prompt_logprobs:
            self.prompt_logprobs = output.prompt_logprobs
        text = transcript.push(output)
        tokens, logprobs = transcript.taken()
        said = Said(text) if self.interpreter is None else self._read(self.interpreter, text, tokens)
        step = Step(self.index, said, logprobs, self.finish, tokens, transcript.completion_tokens)
        return step if self._echoed else self._with_echo(step, output)

    def _read(self, interpreter: Interpreter, text: str, tokens: tuple[int, ...]) -> Said:
        said = interpreter.push(text, tokens) if text or tokens else NOTHING
        if said.reasoning:
            self.reasoning_tokens += len(tokens)
        if self.transcript.finish is None:
            return said
        last = interpreter.finish()
        return Said(said.text + last.text, said.reasoning + last.reasoning, said.tools + last.tools)

    def _with_echo(self, step: Step, output: Output) -> Step:
        """The prompt stands before the first tokens, because its logprobs come with these."""
        assert self.echo is not None
        if not output.tokens and step.finish is None:
            return step
        self._echoed = True
        if self.echo.only:
            step = Step(self.index, NOTHING, finish=self.finish)
        said = step.said._replace(text=self.echo.text + step.said.text)
        return step._replace(said=said, logprobs=(*self._of_prompt(), *step.logprobs))

    def _of_prompt(self) -> list[TokenLogprobs]:
        """What is known of each of its tokens, if that is asked for; of the first, nothing ever is."""
        if self.request.sampling.logprobs < 0:
            return []
        prompt = tokens_from_bytes(self.request.tokens)
        known = self.prompt_logprobs or (None,) * len(prompt)
        return [it or TokenLogprobs(token, nan) for token, it in zip(prompt, known, strict=True)]
