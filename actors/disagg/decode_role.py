"""DecodeRole: a worker that decodes, and may have long prompts computed by others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from actors.disagg.jobs_follower import JobsFollower
from actors.disagg.prefill_job_client import PrefillJobClient
from actors.disagg.prefill_peers import Kind, PrefillConnection, PrefillPeers
from actors.disagg.remote_prefill import RemotePrefill
from actors.disagg.worker_role import RoleContext
from actors.transport.frames import FromPrefill, Generate
from core.generation import Output
from core.kv_transfer import TRANSPORTS
from streams.live_settings import LiveSettings


class DecodeRole:
    """See `actors.disagg.worker_role.WorkerRole`."""

    def __init__(self, context: RoleContext) -> None:
        info, transfer = context.engine.info, context.engine.transfer
        assert transfer is not None
        assert context.mirror is not None
        self._context = context
        self._live = LiveSettings(context.routing, lambda: None)
        self._peers = PrefillPeers(Kind(info.model, info.block_size, transfer.address.layout))
        self._job_client = PrefillJobClient(
            self._peers,
            context.clock,
            say=lambda event: context.present().say_job(event),
            away_s=lambda: context.present().jobs_away_s,
            decline=transfer.decline,
        )
        self._jobs_follower = JobsFollower(context.log, context.clock, context.key.chain_key, self._job_client.on_event)
        self.remote_prefill = RemotePrefill(
            context.engine,
            context.mirror,
            self._job_client,
            self._live,
            context.clock,
            context.key.hash_seed,
            jobs=lambda: self._jobs_follower.jobs,
            broken=lambda why: context.leave(f"engine dead: {why}"),
        )

    def __repr__(self) -> str:
        return f"<DecodeRole {self.remote_prefill!r}>"

    @property
    def jobs_open(self) -> int:
        """Those that it asked for."""
        return len(self._job_client.jobs)

    @property
    def waits_elsewhere(self) -> int:
        """For jobs, and for blocks that others fetch."""
        return self.remote_prefill.waiting

    async def start(self) -> None:
        """Settings, prefill workers and the queue are followed from now on, whenever what tells of them is there."""
        await self._live.follow(self._context.registry)
        await self._peers.follow(self._context.registry)
        self._jobs_follower.start()

    def rejoined(self) -> None:
        """Jobs open under the old id go on: whoever has them answers over its connection."""

    async def quiet(self) -> None:
        """Requests end by themselves, and jobs with them."""

    async def stop(self) -> None:
        """The queue is followed no more, and nobody holds blocks for us that we know of."""
        await self._jobs_follower.stop()
        await self.remote_prefill.close()
        await self._job_client.close()

    def generate(self, frame: Generate) -> AsyncIterator[Output]:
        """From blocks of another engine, where that pays."""
        return self.remote_prefill.generate(frame.request, frame.hint)

    def on_frame(self, connection: PrefillConnection, frame: FromPrefill) -> None:
        """A prefill worker spoke."""
        self._job_client.on_frame(connection, frame)

    def on_disconnect(self, connection: PrefillConnection) -> None:
        """A connection broke."""
        self._job_client.on_disconnect(connection)

    def totals(self) -> dict[str, int]:
        """Prompts by where they were computed, and what was moved."""
        counts = self._job_client.counts
        recomputed = sum(counts.values()) - counts["pulled"] - counts["client_gone"]
        return {
            "prefill_local": sum(self.remote_prefill.verdicts.values()) - self.remote_prefill.verdicts["long"],
            "prefill_remote": counts["pulled"],
            "prefill_recomputed": recomputed,
            "blocks_pulled": self.remote_prefill.pulled_blocks,
            **{f"pulled_by_{name}": self._job_client.transports[name] for name in TRANSPORTS},
        }

    def describe(self) -> dict[str, Any]:
        """Where prompts were computed and why, and who could compute them now."""
        transfer = self._context.engine.transfer
        assert transfer is not None
        return {
            "prefill_workers": self._peers.able(),
            "jobs_open": len(self._job_client.jobs),
            "settings_revision": self._live.revision,
            "verdicts": dict(sorted(self.remote_prefill.verdicts.items())),
            "jobs": dict(sorted(self._job_client.counts.items())),
            "engine": transfer.totals()._asdict(),
        }
