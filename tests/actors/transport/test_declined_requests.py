"""A worker declines a held request while it computes prompts of other replicas."""

from __future__ import annotations

from actors.transport.frames import Cancel, Failed, Generate
from core.generation import Hint, Output
from projections.policy.binding_plan import PASS_TOKENS
from tests.actors.transport.test_worker_server import site
from tests.actors.world import request
from tests.fixtures.eventually import eventually
from tests.fixtures.loops import Run, run

__all__ = ["run"]


def test_declining(run: Run) -> None:
    """Who asks for a free worker is declined while it computes prompts of others with which its own does not fit into
    one pass, and told how much; not because of its own, nor once the others have their first tokens, nor if it did not
    ask."""

    async def scenario() -> None:
        async with site() as it:
            ours, theirs = await it.connect(), await it.connect()

            def asks(stream: int, *, if_free: bool) -> Generate:
                hint = Hint(prefill_tokens=3000 + stream, if_free=if_free)
                return Generate(stream=stream, model="sim", request=request(range(8), id=f"r{stream}"), hint=hint)

            ours.say(asks(0, if_free=True), asks(1, if_free=True))
            await eventually(lambda: it.port.streams == 2, "both are taken")
            theirs.say(asks(2, if_free=True))
            assert await theirs.hear() == Failed(stream=2, fault="busy", text="6001")
            theirs.say(asks(3, if_free=False))
            await eventually(lambda: it.port.streams == 3, "it is taken")
            ours.say(asks(4, if_free=True))
            assert await ours.hear() == Failed(stream=4, fault="busy", text="3003")
            it.host.engine.script("r3").put_nowait(Output(tokens=(7,), cached_tokens=0))
            await theirs.hear()
            ours.say(asks(5, if_free=True))
            await eventually(lambda: it.port.streams == 4, "it is taken")
            it.host.engine.script("r0").put_nowait(Output(tokens=(7,), cached_tokens=0, finish="stop"))
            ours.say(Cancel(stream=1), Cancel(stream=5))
            await eventually(lambda: it.port.streams == 1, "theirs is left")
            theirs.say(asks(6, if_free=True))
            await eventually(lambda: it.port.streams == 2, "it is taken")

    run(scenario)


def test_small_ones_share_a_pass(run: Run) -> None:
    """Prompts of several replicas that fit into one pass together are all taken, and not one token more."""

    async def scenario() -> None:
        async with site() as it:
            ours, theirs = await it.connect(), await it.connect()

            def asks(stream: int, tokens: int) -> Generate:
                hint = Hint(prefill_tokens=tokens, if_free=True)
                return Generate(stream=stream, model="sim", request=request(range(8), id=f"r{stream}"), hint=hint)

            ours.say(asks(0, 1000))
            await eventually(lambda: it.port.streams == 1, "it is taken")
            theirs.say(asks(1, PASS_TOKENS - 999))
            assert await theirs.hear() == Failed(stream=1, fault="busy", text="1000")
            theirs.say(asks(2, PASS_TOKENS - 1000))
            await eventually(lambda: it.port.streams == 2, "it is taken")

    run(scenario)
