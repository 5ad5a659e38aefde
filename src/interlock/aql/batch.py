"""Batches: several operations in one request, each a call of its own.

They run in their order, one after the other; only what all reads runs side by side. One that fails
does not stop the others. One that waits for a human does: what follows may depend on it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from interlock.aql import error_mapping
from interlock.aql.builtin_operations import EXPIRED
from interlock.aql.config import AqlConfig
from interlock.aql.language import envelope, errors
from interlock.aql.language.envelope import BatchHalt, BatchItem
from interlock.aql.language.errors import AqlError
from interlock.aql.language.request import DRY_RUN, LONGEST_NAME, SingleRequest, item
from interlock.aql.operations import OperationFinder
from interlock.aql.request import AqlRequest, ChildRequest, child_of
from interlock.aql.warnings import none_succeeded_warning
from interlock.core.call import Call
from interlock.core.ports import CallHost
from interlock.errors import InterlockError
from interlock.protocol.aql_terms import Category
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import META_PROGRESS_TOKEN, PROGRESS

SIDE_BY_SIDE: Final = 8
"""So many operations of a batch that only reads run together."""
PENDING: Final = "pending_confirmation"
_WAITS: Final = b'{"success":false,"error":{"code":"CONFIRMATION_REQUIRED"'


class BatchRunner:
    """Runs the operations of a batch."""

    def __init__(self, host: CallHost, config: AqlConfig, find: OperationFinder) -> None:
        """`find`: what a name means in a face."""
        self._host = host
        self._find = find
        self.configure(config)

    def configure(self, config: AqlConfig) -> None:
        self._limits = config.limits
        self._skips = config.batch_confirmation == "skip"

    async def run(self, asked: AqlRequest) -> bytes:
        """The whole answer. `asked.params`: `items`, raw, `endpoint`, by which they came, and
        `dry_run`: none of them is to be done."""
        call, params = asked.call, asked.params or {}
        assert call is not None
        batch = _Batch(self._host, call, params["endpoint"], params["items"], asked)
        dry = params["dry_run"]
        singles = [self._read(raw, dry) for raw in batch.items]
        names = [one.operation if isinstance(one, SingleRequest) else "" for one in singles]
        batch.names = [errors.short(name, LONGEST_NAME) for name in names]
        batch.unread = [
            ChildRequest(one, asked.family)
            if isinstance(one, SingleRequest)
            else ChildRequest(None, asked.family, one)
            for one in singles
        ]
        found = [self._find(name, asked.face) if name else None for name in names]
        batch.own = {at for at, one in enumerate(found) if one is not None and one.native}
        missing = [
            one for one, known in zip(batch.unread, found, strict=True) if one.single and not known
        ]
        for one in missing[1:]:
            # To look for what was meant takes its time: it is done once for all of them.
            one.alone = False
        batch.room = self._limits.response_bytes * 9 // 10
        try:
            if all(one is not None and one.category is Category.READ for one in found):
                await batch.side_by_side()
            else:
                await batch.one_by_one(skips=self._skips)
        except asyncio.CancelledError as cancelled:
            if EXPIRED not in cancelled.args:
                raise
            # What was done is done: whoever asked must know what that is.
            batch.out_of_time()
        return batch.answer()

    def _read(self, raw: Raw, dry: bool) -> SingleRequest | AqlError:
        try:
            single = item(raw, self._limits)
        except AqlError as wrong:
            return wrong
        if dry:
            single = replace(single, meta={**single.meta, DRY_RUN: Raw(b"true")})
        return single


class _Batch:
    """One of them, on its way."""

    def __init__(
        self, host: CallHost, call: Call, endpoint: str, items: list[Raw], asked: AqlRequest
    ) -> None:
        self.items = items
        self.names: list[str] = []
        self.unread: list[ChildRequest] = []
        self.own: set[int] = set()
        """Those that the node answers itself."""
        self.room = 0
        """How many bytes the answers may still have."""
        self._host = host
        self._call = call
        self._endpoint = endpoint
        self._asked = asked
        self._done: list[BatchItem | None] = [None] * len(items)
        self._halt: BatchHalt | None = None

    async def one_by_one(self, *, skips: bool) -> None:
        for index in range(len(self.items)):
            one = await self._make(index)
            if one.result.startswith(_WAITS):
                if not skips:
                    self._halt = BatchHalt(one, self.items[index + 1 :])
                    return
                one = BatchItem(one.index, one.operation, one.result, PENDING)
            self._take(one)

    async def side_by_side(self) -> None:
        free = asyncio.Semaphore(SIDE_BY_SIDE)
        # What the node answers itself is done at once, and everybody else waits for it.
        own = asyncio.Semaphore(1)

        async def make(index: int) -> None:
            async with own if index in self.own else free:
                one = await self._make(index)
            # Nothing that only reads depends on it: the others go on.
            waits = one.result.startswith(_WAITS)
            self._take(BatchItem(one.index, one.operation, one.result, PENDING) if waits else one)

        async with asyncio.TaskGroup() as group:
            for index in range(len(self.items)):
                group.create_task(make(index))

    async def _make(self, index: int) -> BatchItem:
        # Others have their turn in between, whatever this one takes.
        await asyncio.sleep(0)
        child = child_of(self._call, self._endpoint, bytes(self.items[index]), self.unread[index])
        try:
            outcome = await self._host.run(child)
            result = outcome.result
        except InterlockError as error:
            result = envelope.failure(*error_mapping.of_error(error))
        return BatchItem(index, self.names[index], result)

    def _take(self, one: BatchItem) -> None:
        self.room -= len(one.result)
        if self.room < 0:
            error = errors.too_large(
                "response_size", len(one.result) + self.room, len(one.result), "bytes"
            )
            message = "It was done, but its answer is too large for this batch. Ask for it alone."
            small = envelope.failure(error.code, message, error.data)
            self.room += len(one.result)
            one = BatchItem(one.index, one.operation, small)
        self._done[one.index] = one
        self._tell()

    def _tell(self) -> None:
        """Say how far it is, to a client that wants to know."""
        token = (self._call.meta or {}).get(META_PROGRESS_TOKEN)
        if token is not None:
            done = sum(1 for one in self._done if one is not None)
            params = {"progressToken": token, "progress": done, "total": len(self.items)}
            self._host.on_notification(self._call, PROGRESS, encode_value(params))

    def out_of_time(self) -> None:
        begun = True
        for index, known in enumerate(self._done):
            if known is None:
                # The first of them was under way, unless all read.
                why = "It may have been done: look before you try again." if begun else "Not begun."
                begun = False
                failure = envelope.failure(
                    "INTERNAL_ERROR", f"The time of the batch was over. {why}", {"reason": EXPIRED}
                )
                self._done[index] = BatchItem(index, self.names[index], failure)

    def answer(self) -> bytes:
        items = [one for one in self._done if one is not None]
        meta = None
        if self._asked.request_id:
            meta = {"request_id": self._asked.request_id}
        warnings = []
        if not any(one.succeeded for one in items):
            held = sum(1 for one in items if one.status)
            halt = self._halt
            failed, pending = len(items) - held, 0 if halt is None else len(halt.pending)
            warnings.append(none_succeeded_warning(failed, held + (halt is not None), pending))
        return envelope.batch(
            items, total=len(self.items), halt=self._halt, warnings=warnings, meta=meta
        )
