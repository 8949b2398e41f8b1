"""A small real tokenizer, and a backend that says what a script tells it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from core.generation import GenerateRequest, Output, OutputConsumer
from core.models import ModelCard, UnknownModel
from core.readiness import Readiness

TEXT = """A jet leaves a contrail; this system leaves its log. Each request goes to the worker whose cache already
holds most of the prompt, and what such a choice rests on is written down, so that it can be explained later."""
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|start|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
CONTEXT_MAX = 200


@cache
def tokenizer() -> Tokenizer:
    """A byte-level BPE of a few hundred tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT], trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", made.token_to_id("<|start|>"))]
    )
    return made


def ids(text: str) -> tuple[int, ...]:
    """The text's tokens, nothing added."""
    return tuple(tokenizer().encode(text, add_special_tokens=False).ids)


END = SPECIAL.index("<|end|>")


@cache
def files() -> dict[str, bytes]:
    """What a worker gives for the model."""
    config = {"bos_token": {"content": "<|start|>"}, "eos_token": "<|end|>", "chat_template": TEMPLATE}
    return {
        "tokenizer.json": tokenizer().to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
        "generation_config.json": json.dumps({"eos_token_id": [END, 0]}).encode(),
    }


def card(name: str) -> ModelCard:
    """A simulated model with that tokenizer."""
    return ModelCard(
        name=name, engine="simulated", context_max=CONTEXT_MAX, created_s=1_700_000_000, workers=1, files=files()
    )


Step = Output | Exception | asyncio.Event
"""What comes next: tokens, a failure, or a wait until the event is set."""


def spoken(*pieces: str, finish: str = "stop") -> list[Step]:
    """One output per piece, the last one with the end token."""
    outputs: list[Step] = [Output(tokens=ids(piece)) for piece in pieces]
    return [Output(cached_tokens=7), *outputs, Output(tokens=(END,), finish=finish)]


class ScriptedBackend:
    """Every generation follows its script; what was asked is in `requests`, `closed` counts the ended ones."""

    def __init__(self) -> None:
        self.script: Sequence[Step] = spoken("hello")
        self.scripts: dict[str, Sequence[Step]] = {}
        """For requests whose id ends so, instead of `script`."""
        self.requests: list[GenerateRequest] = []
        self.ended: list[str | None] = []
        """What callers said of the end when they closed."""
        self.failures: list[tuple[str, str, str, type[Exception]]] = []
        """What failed inside the API."""
        self.closed = 0
        self.changed = asyncio.Condition()
        self.delays: list[tuple[str, int, int, int]] = []
        self.waiting: dict[str, str] = {}

    def models(self) -> list[ModelCard]:
        return [card("org/other"), card("tiny")]

    def model_of(self, name: str) -> str:
        return name

    def card(self, model: str) -> ModelCard:
        for known in self.models():
            if known.name == model:
                return known
        raise UnknownModel(f"there is no model {model!r} here; /v1/models lists what there is")

    async def _generate(
        self, model: str, request: GenerateRequest, consumer: OutputConsumer
    ) -> AsyncGenerator[Output, None]:
        assert self.card(model)
        try:
            async with self.changed:
                self.requests.append(request)
                self.changed.notify_all()
            consumer.on_routed("decode-0")
            for step in self._script(request):
                match step:
                    case Exception():
                        raise step
                    case asyncio.Event():
                        await step.wait()
                    case _:
                        yield step
        finally:
            self.ended.append(consumer.outcome())
            async with self.changed:
                self.closed += 1
                self.changed.notify_all()

    async def run(self, model: str, request: GenerateRequest, consumer: OutputConsumer) -> None:
        async with aclosing(self._generate(model, request, consumer)) as outputs:
            async for output in outputs:
                if not consumer.on_output(output):
                    break
                await asyncio.sleep(0)  # each comes by itself, as a worker's do

    def _script(self, request: GenerateRequest) -> Sequence[Step]:
        return next((script for end, script in self.scripts.items() if request.id.endswith(end)), self.script)

    async def until_asked(self, count: int = 1) -> None:
        """So many generations have begun."""
        async with asyncio.timeout(5), self.changed:
            await self.changed.wait_for(lambda: len(self.requests) >= count)

    async def until_closed(self, count: int = 1) -> None:
        """So many generations have ended."""
        async with asyncio.timeout(5), self.changed:
            await self.changed.wait_for(lambda: self.closed >= count)

    def delayed(self, request: str, written_ms: int, stalled_ms: int, unsent_bytes: int) -> None:
        self.delays.append((request, written_ms, stalled_ms, unsent_bytes))

    def failed(self, request: str, model: str, tenant: str, error: Exception) -> None:
        self.failures.append((request, model, tenant, type(error)))

    def ready(self) -> Readiness:
        return Readiness(not self.waiting, self.waiting)
