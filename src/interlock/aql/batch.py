"""Batches: several operations in one request, each executed as a separate call.

They run in order, one after the other. Only batches of read operations run concurrently. A failed
operation does not stop the others. An operation that needs approval does, because later ones may
depend on it.
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
from interlock.aql.language.request import DRY_RUN, MAX_NAME_CHARACTERS, SingleRequest, read_item
from interlock.aql.operations import OperationFinder
from interlock.aql.request import AqlRequest, ChildRequest, create_child_call
from interlock.aql.warnings import none_succeeded_warning
from interlock.core.call import Call
from interlock.core.ports import CallHost
from interlock.errors import InterlockError
from interlock.protocol.aql_terms import Category
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import META_PROGRESS_TOKEN, PROGRESS

MAX_CONCURRENT: Final = 8
"""Maximum number of concurrent operations in a batch of read operations."""
PENDING: Final = "pending_confirmation"
_CONFIRMATION_HEAD: Final = b'{"success":false,"error":{"code":"CONFIRMATION_REQUIRED"'


class BatchRunner:
    """Runs the operations of a batch."""

    def __init__(self, host: CallHost, config: AqlConfig, find: OperationFinder) -> None:
        """
        Args:
            find: finds an operation by name in a view.
        """
        self._host = host
        self._find = find
        self.configure(config)

    def configure(self, config: AqlConfig) -> None:
        self._limits = config.limits
        self._skips_pending = config.batch_confirmation == "skip"

    async def run(self, request: AqlRequest) -> bytes:
        """Run a batch and return the full response.

        `request.params` has `items` (raw), `endpoint` (the endpoint that received them), and
        `dry_run`.
        """
        call, params = request.call, request.params or {}
        assert call is not None
        batch = _Batch(self._host, call, params["endpoint"], params["items"], request)
        is_dry_run = params["dry_run"]
        singles = [self._read(raw, is_dry_run) for raw in batch.items]
        names = [
            single.operation if isinstance(single, SingleRequest) else "" for single in singles
        ]
        batch.names = [errors.shorten(name, MAX_NAME_CHARACTERS) for name in names]
        batch.child_requests = [
            ChildRequest(single, request.family)
            if isinstance(single, SingleRequest)
            else ChildRequest(None, request.family, single)
            for single in singles
        ]
        operations = [self._find(name, request.operation_view) if name else None for name in names]
        batch.builtin_indices = {
            index
            for index, operation in enumerate(operations)
            if operation is not None and operation.builtin
        }
        missing = [
            single
            for single, operation in zip(batch.child_requests, operations, strict=True)
            if single.single and not operation
        ]
        for single in missing[1:]:
            # Searching for similar names is slow: do it for one operation only.
            single.suggest_names = False
        batch.remaining_bytes = self._limits.response_bytes * 9 // 10
        try:
            if all(
                single is not None and single.category is Category.READ for single in operations
            ):
                await batch.run_concurrently()
            else:
                await batch.run_in_order(skips_pending=self._skips_pending)
        except asyncio.CancelledError as error:
            if EXPIRED not in error.args:
                raise
            # Completed operations must be reported to the caller.
            batch.fill_unfinished()
        return batch.write_response()

    def _read(self, raw: Raw, is_dry_run: bool) -> SingleRequest | AqlError:
        try:
            single = read_item(raw, self._limits)
        except AqlError as error:
            return error
        if is_dry_run:
            single = replace(single, meta={**single.meta, DRY_RUN: Raw(b"true")})
        return single


class _Batch:
    """A running batch."""

    def __init__(
        self, host: CallHost, call: Call, endpoint: str, items: list[Raw], request: AqlRequest
    ) -> None:
        self.items = items
        self.names: list[str] = []
        self.child_requests: list[ChildRequest] = []
        self.builtin_indices: set[int] = set()
        """Indices of built-in operations."""
        self.remaining_bytes = 0
        """Remaining bytes for the results."""
        self._host = host
        self._call = call
        self._endpoint = endpoint
        self._request = request
        self._results: list[BatchItem | None] = [None] * len(items)
        self._halt: BatchHalt | None = None

    async def run_in_order(self, *, skips_pending: bool) -> None:
        for index in range(len(self.items)):
            item = await self._run_item(index)
            if item.result.startswith(_CONFIRMATION_HEAD):
                if not skips_pending:
                    self._halt = BatchHalt(item, self.items[index + 1 :])
                    return
                item = BatchItem(item.index, item.operation, item.result, PENDING)
            self._add_result(item)

    async def run_concurrently(self) -> None:
        slots = asyncio.Semaphore(MAX_CONCURRENT)
        # Built-in operations run synchronously and block the event loop, so they run one by one.
        builtin_slot = asyncio.Semaphore(1)

        async def make(index: int) -> None:
            async with builtin_slot if index in self.builtin_indices else slots:
                item = await self._run_item(index)
            # Read operations do not depend on each other, so the others continue.
            is_pending = item.result.startswith(_CONFIRMATION_HEAD)
            self._add_result(
                BatchItem(item.index, item.operation, item.result, PENDING) if is_pending else item
            )

        async with asyncio.TaskGroup() as group:
            for index in range(len(self.items)):
                group.create_task(make(index))

    async def _run_item(self, index: int) -> BatchItem:
        # Let other tasks run in between.
        await asyncio.sleep(0)
        child = create_child_call(
            self._call, self._endpoint, bytes(self.items[index]), self.child_requests[index]
        )
        try:
            outcome = await self._host.run(child)
            result = outcome.result
        except InterlockError as error:
            result = envelope.write_failure(*error_mapping.map_error(error))
        return BatchItem(index, self.names[index], result)

    def _add_result(self, item: BatchItem) -> None:
        self.remaining_bytes -= len(item.result)
        if self.remaining_bytes < 0:
            error = errors.too_large(
                "response_size",
                len(item.result) + self.remaining_bytes,
                len(item.result),
                "bytes",
            )
            message = "It was executed, but its result is too large for this batch. Send it alone."
            failure = envelope.write_failure(error.code, message, error.data)
            self.remaining_bytes += len(item.result)
            item = BatchItem(item.index, item.operation, failure)
        self._results[item.index] = item
        self._report_progress()

    def _report_progress(self) -> None:
        """Send progress to a client that requested it."""
        token = (self._call.meta or {}).get(META_PROGRESS_TOKEN)
        if token is not None:
            done = sum(1 for item in self._results if item is not None)
            params = {"progressToken": token, "progress": done, "total": len(self.items)}
            self._host.on_notification(self._call, PROGRESS, encode_value(params))

    def fill_unfinished(self) -> None:
        is_running = True
        for index, done_item in enumerate(self._results):
            if done_item is None:
                # The first one was running, unless all run concurrently.
                reason = (
                    "It may have been executed: check before a retry."
                    if is_running
                    else "Not started."
                )
                is_running = False
                failure = envelope.write_failure(
                    "INTERNAL_ERROR", f"The batch timed out. {reason}", {"reason": EXPIRED}
                )
                self._results[index] = BatchItem(index, self.names[index], failure)

    def write_response(self) -> bytes:
        items = [item for item in self._results if item is not None]
        meta = None
        if self._request.request_id:
            meta = {"request_id": self._request.request_id}
        warnings = []
        if not any(item.succeeded for item in items):
            pending_count = sum(1 for item in items if item.status)
            halt = self._halt
            failed, not_started = (
                len(items) - pending_count,
                0 if halt is None else len(halt.pending),
            )
            warnings.append(
                none_succeeded_warning(failed, pending_count + (halt is not None), not_started)
            )
        return envelope.write_batch(
            items, total=len(self.items), halt=self._halt, warnings=warnings, meta=meta
        )
