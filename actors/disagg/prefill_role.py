"""PrefillRole: a worker that computes prompts for decode workers, and serves no requests of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from actors.disagg.prefill_peers import PrefillConnection
from actors.disagg.prefill_service import PrefillService
from actors.disagg.requester_connections import RequesterConnections
from actors.disagg.worker_role import RoleContext, unavailable_outputs
from actors.transport.frames import PROTOCOL, FromPrefill, Generate, Hello, Introduce, ToPrefill
from core.generation import Output
from core.ids import WorkerId


class PrefillRole:
    """See `actors.disagg.worker_role.WorkerRole`."""

    def __init__(self, context: RoleContext, slots: int) -> None:
        assert context.engine.transfer is not None
        self._context = context
        self._requesters = RequesterConnections(
            context.engine.info.model,
            self._hello,
            self._introduce,
            on_frame=self._on_frame,
            on_disconnect=self._on_disconnect,
        )
        self.service = PrefillService(
            context.engine,
            context.log,
            self._requesters,
            context.clock,
            context.namespace,
            slots=slots,
            say=lambda event: context.present().say_job(event),
            served=context.served,
        )

    def __repr__(self) -> str:
        return f"<PrefillRole {self.service!r}>"

    @property
    def jobs_open(self) -> int:
        """Those that it said it began."""
        return self.service.state.started

    @property
    def waits_elsewhere(self) -> int:
        """Nobody does: it serves no requests."""
        return 0

    async def start(self) -> None:
        """Decode workers are connected to and jobs taken from now on, whenever registry and log are there."""
        await self._requesters.follow(self._context.registry)
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
        return unavailable_outputs("this worker computes prompts for decode workers and serves no requests")

    def on_frame(self, connection: PrefillConnection, frame: FromPrefill) -> None:
        """Prefill workers do not ask each other."""

    def on_disconnect(self, connection: PrefillConnection) -> None:
        """That was a replica."""

    def totals(self) -> dict[str, int]:
        """Jobs by how they ended here."""
        counts = self.service.state.counts
        return {f"jobs_{how}": counts[how] for how in ("completed", "failed", "dead", "not_wanted", "withdrawn")}

    def describe(self) -> dict[str, Any]:
        """What it works on and keeps."""
        state = self.service.state
        return {
            "jobs_under_way": self.service.under_way,
            "prompts_held": len(state.leases),
            "decode_workers": sum(client.up for client in self._requesters.clients.values()),
            "jobs": dict(sorted(state.counts.items())),
            "engine": state.transfer.totals()._asdict(),
        }

    def _on_frame(self, worker: WorkerId, frame: ToPrefill) -> None:
        self.service.on_frame(worker, frame)

    def _on_disconnect(self, worker: WorkerId) -> None:
        self.service.on_disconnect(worker)

    def _hello(self) -> Hello:
        present = self._context.present()
        return Hello(
            protocol=PROTOCOL, key=self._context.key.door_key, namespace=self._context.namespace, replica=present.id
        )

    def _introduce(self) -> Introduce:
        present, info, transfer = self._context.present(), self._context.engine.info, self._context.engine.transfer
        assert transfer is not None
        return Introduce(
            worker=present.id,
            name=present.joined.name,
            model=info.model,
            block_size=info.block_size,
            layout=transfer.address.layout,
        )
