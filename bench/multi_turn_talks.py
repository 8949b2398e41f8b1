"""Conversations with growing prompts: each turn's prompt is the one before, its answer, and new words.

Talks of one group begin alike, as with a system prompt of their application. A talk waits for its answer, then for the
time of reading and typing. Prompts are token ids, so a prompt is, token by token, what the engine has seen.
"""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

from bench.streamed import Streamed, ask, completion

WORDS = (300, 900)
"""Token ids that are plain words: in the built-in vocabulary, and in any other of some size."""


class Workload(NamedTuple):
    """Numbers of talks and turns, and lengths of prompts and answers."""

    talks: int = 6
    turns: int = 6
    groups: int = 2
    system_tokens: int = 480
    """Common prefix of the talks of a group."""
    words_min: int = 240
    """New tokens in a turn …"""
    words_max: int = 480
    answer_tokens: int = 24
    pause_s: float = 1.0
    """Between an answer and the next turn, up to twice this; and between the beginnings of two talks."""

    @property
    def tokens_max(self) -> int:
        """Of the longest prompt with its answer."""
        return self.system_tokens + self.turns * (self.words_max + self.answer_tokens)


class Turn(NamedTuple):
    """One turn as its client saw it."""

    talk: int
    turn: int
    answer: Streamed


async def talk_all(port: int, model: str, load: Workload, shape: int, content: int) -> list[Turn]:
    """All talks have had all their turns, in no certain order. `shape` is the seed of how long everything is, `content`
    that of the words: equal shapes are equal work, and prompts of different contents have no block in common. The
    program that asks hears of a failure by an AssertionError."""
    words = random.Random(f"{content}/groups")
    systems = [_words(words, load.system_tokens) for _ in range(load.groups)]
    talks = (
        _talk(port, model, load, number, systems[number % load.groups], f"{shape}/{number}", f"{content}/{number}")
        for number in range(load.talks)
    )
    return [turn for turns in await asyncio.gather(*talks) for turn in turns]


async def _talk(
    port: int, model: str, load: Workload, number: int, system: list[int], shape: str, content: str
) -> list[Turn]:
    lengths, words, prompt, turns = random.Random(shape), random.Random(content), list(system), list[Turn]()
    await asyncio.sleep(number * load.pause_s * 2 * lengths.random())
    for place in range(load.turns):
        prompt += _words(words, lengths.randint(load.words_min, load.words_max))
        body = completion(model, prompt, load.answer_tokens, return_token_ids=True)
        answer = await ask(port, body, f"talk-{content.replace('/', '-')}-{place}")
        assert answer.complete, f"turn {place} of a talk was not answered: {answer.status} {answer.failure}"
        prompt += answer.tokens
        turns.append(Turn(number, place, answer))
        await asyncio.sleep(load.pause_s * 2 * lengths.random())
    return turns


def _words(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(*WORDS) for _ in range(count)]
