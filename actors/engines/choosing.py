"""Which tokens a simulated engine may give to one request: its bounds, and what takes the place of one outside them."""

from __future__ import annotations

from actors.engines.simulated_settings import SimulatedSettings
from core.errors import CallerError
from core.generation import Sampling

BIAS_DECIDES = 100.0
"""A bias of so much forces a token, of minus so much it forbids it; one between has no meaning without logits."""


class Choosing:
    """One request's bounds. With neither biases nor allowed tokens, all that can be avoided is an end that is early."""

    __slots__ = ("_avoided", "_forbidden", "_ignore_eos", "_only", "_settings", "_stops")

    def __init__(self, sampling: Sampling, settings: SimulatedSettings) -> None:
        self._settings = settings
        self._stops = sampling.stop_token_ids
        self._ignore_eos = sampling.ignore_eos
        self._forbidden = frozenset(token for token, bias in sampling.logit_bias if bias <= -BIAS_DECIDES)
        self._avoided = len(self._stops) + len(self._forbidden)
        allowed = [token for token in sampling.allowed_token_ids if token not in self._forbidden]
        forced = [token for token, bias in sampling.logit_bias if bias >= BIAS_DECIDES]
        if allowed:
            forced = [token for token in forced if token in allowed]
        self._only = forced or sorted(allowed)
        """If any: no other token is chosen."""

    def ends(self, token: int) -> bool:
        """Whether the answer ends with this token, unless it is too early for that."""
        return token in self._stops or (token == self._settings.eos_token and not self._ignore_eos)

    def choose(self, wanted: int, drawn: int, *, early: bool) -> int:
        """`wanted` if it is within bounds, else one that is, by `drawn`; no end if it is too early and there is another
        token."""
        if self._only:
            fitting = [token for token in self._only if not (early and self.ends(token))] or self._only
            return wanted if wanted in fitting else fitting[(drawn >> 16) % len(fitting)]
        first = self._settings.token_min
        for _ in range(self._avoided + 1):  # enough to get past all that are avoided
            if wanted not in self._forbidden and not (early and self.ends(wanted)):
                break
            wanted = first + (wanted + 1 - first) % (self._settings.vocab - first)
        return wanted


def refuse_bounds(settings: SimulatedSettings, sampling: Sampling) -> None:
    """Returns if there is a token within the request's bounds, and no other than the engine's own are named."""
    biased = {token for token, _ in sampling.logit_bias}
    strange = [token for token in (*biased, *sampling.allowed_token_ids) if not 0 <= token < settings.vocab]
    if strange:
        raise CallerError(
            f"logit_bias and allowed_token_ids name {strange[0]}, but token ids are 0 to {settings.vocab - 1}"
        )
    forbidden = {token for token, bias in sampling.logit_bias if bias <= -BIAS_DECIDES}
    usual = sampling.allowed_token_ids or range(settings.token_min, settings.vocab)
    if forbidden and all(token in forbidden for token in usual):
        raise CallerError("logit_bias and allowed_token_ids leave no token to answer with")
