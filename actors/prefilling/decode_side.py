"""DecodeSide: a worker that decodes, and may have long prompts computed by others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from actors.live_settings import LiveSettings
from actors.prefilling.asking import Asking
from actors.prefilling.desk import PrefillDesk
from actors.prefilling.frames import FromPrefill
from actors.prefilling.peers import Connection, Kind, Peers
from actors.prefilling.side import Around
from actors.prefilling.tail import JobsTail
from actors.wire import Generate
from core.generation import Output
from core.kv_transfer import TRANSPORTS


class DecodeSide:
    """See `actors.prefilling.side.Side`."""

    def __init__(self, around: Around) -> None:
        info, transfer = around.engine.info, around.engine.transfer
        assert transfer is not None
        assert around.mirror is not None
        self._around = around
        self._live = LiveSettings(around.routing, lambda: None)
        self._peers = Peers(Kind(info.model, info.block_size, transfer.address.layout))
        self._asking = Asking(
            self._peers,
            around.clock,
            say=lambda event: around.present().say_job(event),
            away_s=lambda: around.present().jobs_away_s,
            decline=transfer.decline,
        )
        self._tail = JobsTail(around.log, around.clock, around.key.chain_key, self._asking.on_event)
        self.desk = PrefillDesk(
            around.engine,
            around.mirror,
            self._asking,
            self._live,
            around.clock,
            around.key.hash_seed,
            jobs=lambda: self._tail.jobs,
            broken=lambda why: around.leave(f"engine dead: {why}"),
        )

    def __repr__(self) -> str:
        return f"<DecodeSide {self.desk!r}>"

    @property
    def jobs_open(self) -> int:
        """Those that it asked for."""
        return len(self._asking.jobs)

    @property
    def waits_elsewhere(self) -> int:
        """For jobs, and for blocks that others fetch."""
        return self.desk.waiting

    async def start(self) -> None:
        """Settings, prefill workers and the queue are followed from now on, whenever what tells of them is there."""
        await self._live.follow(self._around.registry)
        await self._peers.follow(self._around.registry)
        self._tail.start()

    def rejoined(self) -> None:
        """Jobs open under the old id go on: whoever has them answers over its connection."""

    async def quiet(self) -> None:
        """Requests end by themselves, and jobs with them."""

    async def stop(self) -> None:
        """The queue is followed no more, and nobody holds blocks for us that we know of."""
        await self._tail.stop()
        await self.desk.close()
        await self._asking.close()

    def generate(self, frame: Generate) -> AsyncIterator[Output]:
        """From blocks of another engine, where that pays."""
        return self.desk.generate(frame.request, frame.hint)

    def heard(self, connection: Connection, frame: FromPrefill) -> None:
        """A prefill worker spoke."""
        self._asking.heard(connection, frame)

    def gone(self, connection: Connection) -> None:
        """A connection broke."""
        self._asking.gone(connection)

    def totals(self) -> dict[str, int]:
        """Prompts by where they were computed, and what was moved."""
        counts = self._asking.counts
        recomputed = sum(counts.values()) - counts["pulled"] - counts["client_gone"]
        return {
            "prefill_local": sum(self.desk.verdicts.values()) - self.desk.verdicts["long"],
            "prefill_remote": counts["pulled"],
            "prefill_recomputed": recomputed,
            "blocks_pulled": self.desk.pulled_blocks,
            **{f"pulled_by_{name}": self._asking.transports[name] for name in TRANSPORTS},
        }

    def describe(self) -> dict[str, Any]:
        """Where prompts were computed and why, and who could compute them now."""
        transfer = self._around.engine.transfer
        assert transfer is not None
        return {
            "prefill_workers": self._peers.able(),
            "jobs_open": len(self._asking.jobs),
            "settings_revision": self._live.revision,
            "verdicts": dict(sorted(self.desk.verdicts.items())),
            "jobs": dict(sorted(self._asking.counts.items())),
            "engine": transfer.totals()._asdict(),
        }
