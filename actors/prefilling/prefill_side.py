"""PrefillSide: a worker that computes prompts for decode workers, and serves no requests of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from actors.prefilling.frames import FromPrefill, Introduce, ToPrefill
from actors.prefilling.peers import Connection
from actors.prefilling.requesters import Requesters
from actors.prefilling.service import PrefillService
from actors.prefilling.side import Around, refused
from actors.wire import PROTOCOL, Generate, Hello
from core.generation import Output
from core.ids import WorkerId


class PrefillSide:
    """See `actors.prefilling.side.Side`."""

    def __init__(self, around: Around, slots: int) -> None:
        assert around.engine.transfer is not None
        self._around = around
        self._requesters = Requesters(
            around.engine.info.model,
            self._hello,
            self._introduce,
            on_frame=self._on_frame,
            on_gone=self._on_gone,
        )
        self.service = PrefillService(
            around.engine,
            around.log,
            self._requesters,
            around.clock,
            around.namespace,
            slots=slots,
            say=lambda event: around.present().say_job(event),
            served=around.served,
        )

    def __repr__(self) -> str:
        return f"<PrefillSide {self.service!r}>"

    @property
    def jobs_open(self) -> int:
        """Those that it said it began."""
        return self.service.bench.started

    @property
    def waits_elsewhere(self) -> int:
        """Nobody does: it serves no requests."""
        return 0

    async def start(self) -> None:
        """Decode workers are connected to and jobs taken from now on, whenever registry and log are there."""
        await self._requesters.follow(self._around.registry)
        self.service.start()

    def rejoined(self) -> None:
        """Everybody hears who we are now."""
        self._requesters.introduce_again()

    async def quiet(self) -> None:
        """No job is taken any more, and those under way are over."""
        self.service.draining = True
        await self.service.quiet()

    async def stop(self) -> None:
        """Nothing is computed or held any more."""
        await self.service.stop()

    def generate(self, frame: Generate) -> AsyncIterator[Output]:  # noqa: ARG002  # whatever it is
        """Unavailable: such a worker decodes nothing."""
        return refused("this worker computes prompts for decode workers and serves no requests")

    def heard(self, connection: Connection, frame: FromPrefill) -> None:
        """Prefill workers do not ask each other."""

    def gone(self, connection: Connection) -> None:
        """That was a replica."""

    def totals(self) -> dict[str, int]:
        """Jobs by how they ended here."""
        counts = self.service.bench.counts
        return {f"jobs_{how}": counts[how] for how in ("completed", "failed", "dead", "not_wanted", "withdrawn")}

    def describe(self) -> dict[str, Any]:
        """What it works on and keeps."""
        bench = self.service.bench
        return {
            "jobs_under_way": self.service.under_way,
            "prompts_held": len(bench.holds),
            "decode_workers": sum(link.up for link in self._requesters.links.values()),
            "jobs": dict(sorted(bench.counts.items())),
            "engine": bench.transfer.totals()._asdict(),
        }

    def _on_frame(self, worker: WorkerId, frame: ToPrefill) -> None:
        self.service.heard(worker, frame)

    def _on_gone(self, worker: WorkerId) -> None:
        self.service.gone(worker)

    def _hello(self) -> Hello:
        present = self._around.present()
        return Hello(
            protocol=PROTOCOL, key=self._around.key.door_key, namespace=self._around.namespace, replica=present.id
        )

    def _introduce(self) -> Introduce:
        present, info, transfer = self._around.present(), self._around.engine.info, self._around.engine.transfer
        assert transfer is not None
        return Introduce(
            worker=present.id,
            name=present.joined.name,
            model=info.model,
            block_size=info.block_size,
            layout=transfer.address.layout,
        )
