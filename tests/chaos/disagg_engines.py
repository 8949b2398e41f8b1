"""The kinds of engines that remote prefill is tried with: how workers are started, and who knows the right text."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tokenizers import Tokenizer

from actors.engines.simulated.simulated_engine import SimulatedSettings
from actors.engines.vllm.vllm_engine import VllmEngine
from actors.engines.vllm.vllm_side_channel import PORT_VARIABLE
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId
from core.prompt import tokens_to_bytes
from tests.actors.disagg.disagg import alone

FIRST_TOKEN, LAST_TOKEN = 300, 900
"""Plain words of the built-in vocabulary."""
TIE_MAX = 0.01
"""Candidates whose logprobs are no further apart may change places where requests are batched otherwise."""
SIMULATED: dict[str, Any] = {
    "prefill_us_per_token": 150,
    "decode_us_per_step": 2000,
    "transfer_us_per_block": 1500,
    "capacity_blocks": 512,
    "eos_every": 0,
    "token_min": FIRST_TOKEN,
    "vocab": LAST_TOKEN,
}
VLLM: dict[str, Any] = {"max_model_len": 4096}


class Kind(NamedTuple):
    """One of them. Times are seconds."""

    name: str
    args: dict[str, Any]
    prefill_args: dict[str, Any]
    keep_s: float
    """How long prefill workers keep blocks. Their cache is small: what is kept no longer is soon written over."""
    start_s: float
    """How long a worker may take to come."""
    prefill: int
    """So many prefill workers, and …"""
    decode: int
    """… so many decode workers beside the one that is left alone."""
    clients: int
    """So many that some still ask when others wait for a worker that is stopped."""

    def words(self, args: dict[str, Any], port: int) -> tuple[dict[str, Any], dict[str, str]]:
        """Engine arguments and environment of a worker whose blocks are fetched at that port; 0 is any."""
        if self.name == "simulated":
            return {**args, "side_channel_port": port}, {}
        return args, {PORT_VARIABLE: str(port)} if port else {}


KINDS = {
    "simulated": Kind(
        "simulated", SIMULATED, {"keep_ms": 2000, "capacity_blocks": 144}, 2.0, 60.0, prefill=2, decode=1, clients=32
    ),
    "vllm": Kind("vllm", VLLM, {}, 30.0, 480.0, prefill=1, decode=1, clients=4),
}


class Verdict(NamedTuple):
    """What a text is."""

    right: bool
    tie: bool = False
    """It differs from a token on that had a rival as good."""
    expected: str = ""


class Judge(Protocol):
    """The aggregated mode: one engine that computes everything itself."""

    async def start(self, model: Path) -> None:
        """It knows the text of every prompt; `model` is the folder with the tokenizer."""

    async def judge(self, prompt: list[int], max_tokens: int, text: str, *, whole: bool) -> Verdict:
        """Whether that is the greedy text, or the beginning of it if the answer broke off."""

    async def stop(self) -> None:
        """Nothing of it runs."""


class SimulatedJudge:
    """A simulated engine that moves no blocks, a new one for each prompt."""

    def __init__(self) -> None:
        timeless = {"prefill_us_per_token": 0, "decode_us_per_step": 1}
        self._settings = SimulatedSettings.parse(SIMULATED | timeless)
        self._tokenizer: Tokenizer

    async def start(self, model: Path) -> None:
        """See Judge."""
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    async def judge(self, prompt: list[int], max_tokens: int, text: str, *, whole: bool) -> Verdict:
        """See Judge: to the letter."""
        tokens = await alone(request_of(prompt, max_tokens), self._settings)
        expected = str(self._tokenizer.decode(tokens, skip_special_tokens=True))
        return Verdict(text == expected if whole else expected.startswith(text), expected=expected)

    async def stop(self) -> None:
        """See Judge."""


class VllmJudge:
    """A vLLM engine that moves no blocks, asked one prompt at a time: the one given, which is up, or one of our own."""

    def __init__(self, engine: VllmEngine | None = None) -> None:
        self._given = engine
        self._engine: VllmEngine
        self._tokenizer: Tokenizer
        self._number = 0
        self._alone = asyncio.Lock()

    async def start(self, model: Path) -> None:
        """See Judge."""
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._engine = self._given or VllmEngine("tiny", str(model), VLLM)
        if self._given is None:
            await self._engine.start(lambda _change: None)

    async def judge(self, prompt: list[int], max_tokens: int, text: str, *, whole: bool) -> Verdict:
        """See Judge: to the letter, or up to a token whose rival was as good."""
        async with self._alone:
            tokens, rivals = await self._answer(prompt, max_tokens)
        expected = self._text(tokens)
        if text == expected or (not whole and expected.startswith(text)):
            return Verdict(right=True, expected=expected)
        for at in range(len(tokens)):
            if not text.startswith(self._text(tokens[: at + 1]).rstrip("\ufffd")):
                rival, gap = rivals[at]
                tie = gap <= TIE_MAX and text.startswith(self._text([*tokens[:at], rival]).rstrip("\ufffd"))
                return Verdict(right=tie, tie=tie, expected=f"{expected} (gap {gap:.4f} at token {at})")
        return Verdict(right=False, expected=expected)

    async def _answer(self, prompt: list[int], max_tokens: int) -> tuple[list[int], list[tuple[int, float]]]:
        """Greedy tokens, and for each the second best with how much less likely it was."""
        from vllm import SamplingParams  # noqa: PLC0415 - takes seconds, and only if asked for
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0,
            ignore_eos=True,
            logprobs=2,
            output_kind=RequestOutputKind.FINAL_ONLY,
            detokenize=False,
        )
        self._number += 1
        llm: Any = self._engine._llm
        results = [one async for one in llm.generate({"prompt_token_ids": prompt}, params, f"judge-{self._number}")]
        answer = results[-1].outputs[0]
        rivals = []
        for token, found in zip(answer.token_ids, answer.logprobs, strict=True):
            other, value = max(((o, v.logprob) for o, v in found.items() if o != token), key=lambda pair: pair[1])
            rivals.append((int(other), float(found[token].logprob - value)))
        return list(answer.token_ids), rivals

    def _text(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    async def stop(self) -> None:
        """See Judge."""
        if self._given is None:
            await self._engine.stop()


def judge_of(kind: Kind) -> Judge:
    """Who knows what engines of that kind say."""
    return SimulatedJudge() if kind.name == "simulated" else VllmJudge()


def request_of(prompt: list[int], max_tokens: int) -> GenerateRequest:
    """A greedy request."""
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return GenerateRequest(id=RequestId("judged"), tokens=tokens_to_bytes(prompt), sampling=sampling)
