"""WorkerTable: the numbers of all workers that answer requests, as columns: one row per worker, by id.

A decision among many workers reads columns instead of asking each fold for each worker. The folds note the workers of
which a number changed, and only their rows are written anew; so a row costs about a microsecond per event. All rows are
written anew when a worker joins, ends, or loses its cache, or a fold is replaced.

Columns are int64. A number beyond NUMBER_MAX is in none of them, and its row is in `wide`: a reader has to take the
folds themselves then.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from core.events import LoadReported
from core.ids import WorkerId, id_lines
from core.prompt import Prompt
from projections.digest import MASK64
from projections.folds.in_flight import NO_LOAD, InFlightLoad, OutstandingPrefill
from projections.folds.kv_fold import Member, serving_adapter
from projections.folds.load_fold import LoadFold
from projections.index.prefix_index import PrefixIndex
from projections.index.worker_sets import WorkerSets

Column = NDArray[np.int64]
Flags = NDArray[np.bool_]
Objects = NDArray[np.object_]

NUMBER_MAX = 1 << 26
"""Bound of the blocks, requests and tokens of one worker's row, so that no product of a cost leaves 64 bits."""
TIME_US_MAX = 1 << 60
"""Bound of a point in time in a row."""
ELIGIBLE_MAX = 256
"""Models, block sizes and adapters of which the rows are remembered."""
OUTSTANDING_COLUMNS = 4
"""Outstanding prefills of a worker that have columns; a row with more of them is in `crowded`."""

_NO_REPORT = LoadReported(running=0, waiting=0, blocks_used=0, blocks_total=0)
Fixed = tuple[WorkerId, str, int, int, bool]
"""The first fields of a candidate: those that only a join or the loss of a cache changes."""


class Eligible:
    """The rows of one model and block size, and of one adapter if any is asked for."""

    def __init__(
        self, fixed: Sequence[Fixed], model: str, block_size: int, holders: Container[WorkerId] | None
    ) -> None:
        self.excluded: dict[str, list[WorkerId]] = {}
        """All others, by reason."""
        rows = []
        for row, (worker, its_model, its_block_size, _, _) in enumerate(fixed):
            if its_model != model:
                self.excluded.setdefault("other_model", []).append(worker)
            elif its_block_size != block_size:
                self.excluded.setdefault("other_block_size", []).append(worker)
            elif holders is not None and worker not in holders:
                self.excluded.setdefault("other_adapter", []).append(worker)
            else:
                rows.append(row)
        self.flags: Flags = np.zeros(len(fixed), bool)
        self.flags[rows] = True


class WorkerTable:
    """See the module's text. Readers copy the columns that they keep: the next refresh writes into them."""

    def __init__(self) -> None:
        self._serving: list[Member] | None = None
        self._loads: LoadFold | None = None
        self._in_flight: InFlightLoad | None = None
        self._sets: WorkerSets | None = None
        self._sets_changes = 0
        self._eligible: dict[tuple[str, int, str], Eligible] = {}
        self._places: Column = np.zeros(0, np.int64)
        """Of the bit of each row's worker; -1, the last place, without one."""
        self._places_size = 0
        self.rows: dict[WorkerId, int] = {}
        self.wide: dict[int, None] = {}
        """Rows with a number beyond the bounds."""
        self.crowded: dict[int, None] = {}
        """Rows with more outstanding prefills than OUTSTANDING_COLUMNS."""
        self.prefilling = 0
        """Rows with outstanding prefills."""
        self._size(0)

    def __repr__(self) -> str:
        return f"<WorkerTable of {len(self.rows)} workers>"

    def _size(self, count: int) -> None:
        def column() -> Column:
            return np.zeros(count, np.int64)

        self.fixed: list[Fixed] = []
        self.keys: Objects = np.empty(count, object)
        """The ids as bytes."""
        self.ids: Objects = np.empty(count, object)
        self.every_row: Column = np.arange(count)
        self.id_lines = b""
        """The ids, one a line."""
        self.capacities: NDArray[np.uint64] = np.zeros(count, np.uint64)
        """The blocks of each worker's cache, by their lowest 64 bits …"""
        self.known: Column = column()
        """… and 1 where it is known."""
        self.blocks, self.requests, self.prefill_tokens, self.waiting = column(), column(), column(), column()
        self.reuse: Column = column()
        self.turnover: Column = column()
        self.draining: Flags = np.zeros(count, bool)
        self.outstanding: Column = column()
        """The number of outstanding prefills."""
        self.begins_us = [column() for _ in range(OUTSTANDING_COLUMNS)]
        self.tokens = [column() for _ in range(OUTSTANDING_COLUMNS)]
        """Of the outstanding prefills, in the order in which the worker takes them."""

    def refresh(self, serving: list[Member], loads: LoadFold, in_flight: InFlightLoad) -> None:
        """The rows say what the folds say. O(workers whose numbers changed since)."""
        if serving is not self._serving or loads is not self._loads or in_flight is not self._in_flight:
            self._rebuild(serving, loads, in_flight)
        elif loads.changed or in_flight.changed:
            for worker in dict.fromkeys(chain(in_flight.changed, loads.changed)):
                self._write(self.rows[worker], worker, loads, in_flight)
        loads.changed.clear()
        in_flight.changed.clear()

    def eligible(self, model: str, block_size: int, adapter: str = "") -> Eligible:
        """The rows of workers that serve the model with this block size, and the adapter of this id if there is one;
        O(1) when asked before."""
        found = self._eligible.get((model, block_size, adapter))
        if found is None:
            if len(self._eligible) >= ELIGIBLE_MAX:
                self._eligible.clear()
            holders = serving_adapter(self._serving or (), adapter) if adapter else None
            found = Eligible(self.fixed, model, block_size, holders)
            self._eligible[model, block_size, adapter] = found
        return found

    def depths(self, index: PrefixIndex, prompt: Prompt) -> Column | None:
        """The prompt's cached blocks on each row; None where levels differ (`PrefixIndex.depth_column`)."""
        if index.sets is not self._sets or index.sets.changes != self._sets_changes:
            self._sets, self._sets_changes = index.sets, index.sets.changes
            places = [
                bits[worker].bit_length() - 1 if worker in (bits := index.sets.bits) else -1 for worker in self.rows
            ]
            self._places = np.array(places, np.int64)
            self._places_size = max(places, default=0) + 2
        found = index.depth_column(prompt, self._places_size)
        return None if found is None else found[self._places]

    def _rebuild(self, serving: list[Member], loads: LoadFold, in_flight: InFlightLoad) -> None:
        self._serving, self._loads, self._in_flight = serving, loads, in_flight
        self._sets = None
        self._eligible.clear()
        self._size(len(serving))
        self.rows = {member.worker: row for row, member in enumerate(serving)}
        self.wide, self.crowded, self.prefilling = {}, {}, 0
        loads.watched = in_flight.watched = self.rows
        for row, member in enumerate(serving):
            worker, joined = member.worker, member.joined
            assert joined is not None  # only workers that joined serve
            fixed = worker, joined.model, joined.block_size, joined.capacity_blocks, member.cache_known
            self.fixed.append(fixed)
            self.keys[row] = worker.encode()
            self.ids[row] = worker
            self.capacities[row] = joined.capacity_blocks & MASK64
            self.known[row] = member.cache_known
            self._write(row, worker, loads, in_flight)
        self.id_lines = id_lines(self.rows) if self.rows else b""

    def _write(self, row: int, worker: WorkerId, loads: LoadFold, in_flight: InFlightLoad) -> None:
        load, report = in_flight.busy.get(worker, NO_LOAD), loads.reports.get(worker, _NO_REPORT)
        numbers = load.blocks, load.requests, load.prefill_tokens, report.waiting, report.turnover
        self.wide.pop(row, None)
        if min(numbers) < -NUMBER_MAX or max(numbers) > NUMBER_MAX:
            self.wide[row] = None
            return
        self.blocks[row], self.requests[row], self.prefill_tokens[row], self.waiting[row], self.turnover[row] = numbers
        self.draining[row], self.reuse[row] = report.draining, loads.reuse.get(worker, 0)
        if (prefills := in_flight.prefills.get(worker)) or self.outstanding.item(row):
            self._write_prefills(row, sorted(prefills.values()) if prefills else ())

    def _write_prefills(self, row: int, prefills: Sequence[OutstandingPrefill]) -> None:
        self.prefilling += bool(prefills) - bool(self.outstanding.item(row))
        self.outstanding[row] = len(prefills)
        self.crowded.pop(row, None)
        if len(prefills) > OUTSTANDING_COLUMNS:
            self.crowded[row] = None
        for place, (begins_us, _, _, tokens) in enumerate(prefills[:OUTSTANDING_COLUMNS]):
            if abs(begins_us) > TIME_US_MAX or abs(tokens) > NUMBER_MAX:
                self.wide[row] = None
                return
            self.begins_us[place][row], self.tokens[place][row] = begins_us, tokens
