"""How a call ended, in the words of AQL: the envelope around what its tool gave, or a failure.

What belongs to MCP and not to AQL passes as it is: questions of servers, tasks, and whatever says
that the request itself was none.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Final, Protocol

from msgspec import Raw

from interlock import errors
from interlock.call import Call, Client, Outcome, UpstreamAnsweredError
from interlock.config.aql import AqlConfig, OperationConfig
from interlock.errors import InterlockError, ProtocolError
from interlock.pipeline.approval.answer import URL_FIRST, needed_below
from interlock.pipeline.aql import blame, fitting
from interlock.pipeline.aql.asking import Asked, Warning
from interlock.pipeline.aql.blame import Blame
from interlock.pipeline.aql.confirming import Tokens
from interlock.pipeline.aql.shaping import shaped
from interlock.pipeline.aql.shortcut import UNSTRUCTURED
from interlock.pipeline.aql.stage import Over
from interlock.pipeline.aql.warnings import deprecation_warning, ranked, slow_warning
from interlock.pipeline.fault import fault
from interlock.protocol.aql import envelope
from interlock.protocol.aql.cursors import Cursors
from interlock.protocol.aql.faults import AqlError
from interlock.protocol.aql.limits import check_response
from interlock.protocol.aql.words import OWN, SEGMENT
from interlock.protocol.ax import STATUS
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members
from interlock.protocol.mcp import INPUT_REQUIRED, TASK, TASKS_GET, TOOLS_CALL, Era, glance_at

_PASSED: Final = frozenset(
    one.name
    for one in (
        errors.UNAUTHENTICATED,
        errors.UNKNOWN_SESSION,
        errors.CANCELLED,
        errors.HEADER_MISMATCH,
        errors.INVALID_STATE,
        errors.UNSUPPORTED_VERSION,
    )
)
"""What is wrong with a request of MCP, and not with an operation."""
_NO_RESULT: Final = frozenset({INPUT_REQUIRED, TASK})
"""What stands where a result would, and is none yet."""
WHOLE: Final = frozenset({f"{SEGMENT}.batch", f"{SEGMENT}.read_modify_write"})
"""Tools of the node's own that give a whole answer: it is made of answers."""
PAUSED: Final = f"{SEGMENT}.continue_quota"
"""What a call has become whose caller has used up a quota."""
FAILURE: Final = b'{"success":false'
_STATUS: Final = STATUS.encode()
_log = logging.getLogger("interlock.aql")


class Quotas(Protocol):
    """Says what is told of a quota that waits for a human."""

    def paused(self, call: Call, required: Blame) -> Blame: ...


class Teller:
    """Wraps what calls came to."""

    def __init__(
        self,
        config: AqlConfig,
        *,
        clock: Callable[[], float],
        cursors: Cursors,
        settings: Callable[[str], OperationConfig],
        tokens: Tokens | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        """`settings`: what the config says of a tool, by its canonical name. `tokens`: where calls
        wait for humans."""
        self._clock = clock
        self._cursors = cursors
        self._settings = settings
        self._tokens = tokens
        self._quotas = quotas
        self.configure(config)

    def configure(self, config: AqlConfig) -> None:
        self._limits = config.limits
        self._policy = config.is_error
        self._structured = config.structured_content
        self._slow = config.slow_ms / 1000
        self._any_settings = bool(config.operations)

    def __call__(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> Over:
        """Never raises."""
        if call.verb != TOOLS_CALL:
            if call.verb == TASKS_GET and outcome is not None and call.upstream != OWN:
                return self._task(call, outcome), None
            return outcome, error
        asked = call.asked
        if asked is None and (call.view is None or call.name not in call.view.tools):
            # It named no endpoint: that is for MCP to tell.
            return outcome, error
        item = asked is not None and asked.item
        try:
            if error is None and outcome is not None:
                glance = outcome.glance or glance_at(outcome.result)
                if glance.result_type in _NO_RESULT and not item:
                    return outcome, None
                if not glance.is_error:
                    written, blocks = self._success(call, asked, outcome.result)
                    failed = False
                    if written.startswith(FAILURE):
                        failed = envelope.is_error(_code_in(written), self._policy)
                    return self._result(call.client, written, failed, blocks, item), None
                found = self._failed(call, outcome)
            elif error is None or (self._is_of_mcp(error) and not item):
                return outcome, error
            else:
                found = self._error(call, error)
        except AqlError as refused:
            found = blame.of_error(refused)
        except Exception as bug:
            found = blame.of_error(fault(call, bug))
        return self._failure(call, found, item), None

    # -- success

    def _success(self, call: Call, asked: Asked | None, result: bytes) -> tuple[bytes, list[Raw]]:
        """Raises AqlError."""
        try:
            data = envelope.data_of(result)
        except ValueError:
            raise AqlError(
                "INTERNAL_ERROR", "The server of this operation gave no result of a tool."
            ) from None
        raw = data.raw
        if asked is None or asked.operation.canonical in WHOLE:
            return raw, data.blocks
        if asked.operation.native is not None and not data.json:
            # The one thing that structured content cannot say.
            raw = envelope.NULL
        warnings, meta = asked.warnings, None
        if asked.fields is not None or asked.shaping is not None:
            limits = self._limits
            raw, more = shaped(data, asked, self._cursors, page=limits.page, most=limits.most_page)
            warnings = [*(warnings or ()), *more]
        took = self._clock() - call.started
        if took >= self._slow:
            hint = "Ask with '_async': it goes on behind its answer."
            slow = slow_warning(asked.operation.name, took, self._slow, [hint])
            warnings = [*(warnings or ()), slow]
        if self._any_settings:
            warnings = self._deprecated(asked, warnings)
        if asked.request_id:
            meta = envelope.request_meta(asked.request_id, took * 1000)
        if warnings:
            warnings = ranked(warnings)
        written = envelope.success(raw, warnings or (), meta)
        check_response(len(written), self._limits)
        return written, data.blocks

    def _deprecated(self, asked: Asked, warnings: list[Warning] | None) -> list[Warning] | None:
        settings = self._settings(asked.operation.canonical)
        if settings.deprecated is None:
            return warnings
        warning = deprecation_warning(
            "operation",
            asked.operation.name,
            since=settings.deprecated,
            replacement=settings.replacement or "",
        )
        return [*(warnings or ()), warning]

    # -- failure

    def _is_of_mcp(self, error: InterlockError) -> bool:
        if isinstance(error, UpstreamAnsweredError) and error.code == URL_FIRST:
            return True
        return not isinstance(error, AqlError) and error.failure.name in _PASSED

    def _failed(self, call: Call, outcome: Outcome) -> Blame:
        result = outcome.result
        if (
            self._tokens is not None
            and isinstance(call.asked, Asked)
            and _STATUS in result
            and _may_hold(call, outcome)
            and needed_below(result) is not None
        ):
            required = self._tokens.required(call, result)
            if required is not None:
                if call.name == PAUSED and self._quotas is not None:
                    return self._quotas.paused(call, required)
                return required
        return blame.of_result(result)

    def _error(self, call: Call, error: InterlockError) -> Blame:
        asked = call.asked
        if (
            error.failure is errors.INVALID_ARGUMENTS
            and not isinstance(error, AqlError)
            and isinstance(asked, Asked)
            and isinstance(call.decoded, dict)
        ):
            found = fitting.fault(asked.operation, call.decoded)
            if found is not None:
                return blame.of_error(found)
        return blame.of_error(error)

    def _failure(self, call: Call, found: Blame, item: bool) -> Outcome:
        code, message, details = found
        if envelope.is_error(code):
            # Whoever is told of it can name it to whoever reads the log.
            details = {**details, "correlation_id": os.urandom(6).hex()}
            _log.warning(
                "%s: %s of %.100s failed (%s): %.300s",
                details["correlation_id"],
                code,
                call.name,
                "" if call.caller is None else call.caller.name,
                details.get("upstream_error") or message,
            )
        elif code.startswith("PERMISSION_") and self._tokens is not None:
            self._tokens.denied(call, code)
        written = envelope.failure(code, message, details)
        return self._result(call.client, written, envelope.is_error(code, self._policy), (), item)

    # -- as a result of MCP

    def _result(
        self, client: Client, written: bytes, is_error: bool, blocks: Any, item: bool
    ) -> Outcome:
        era = client.era
        if item:
            # Whoever made it of a batch puts the answers together.
            return Outcome(written, Era.SESSION)
        structured = self._structured and client.revision not in UNSTRUCTURED
        result = envelope.as_tool_result(
            written, is_error=is_error, structured=structured, blocks=blocks, era=era
        )
        return Outcome(result, era)

    def _task(self, call: Call, outcome: Outcome) -> Outcome:
        """What is known of a task: its result, when there is one, is that of an operation."""
        try:
            members = decode_members(outcome.result)
            inner = members.get("result")
            if inner is None:
                return outcome
            raw = bytes(inner)
            if glance_at(raw).is_error:
                code, message, details = blame.of_result(raw)
                written: bytes = envelope.failure(code, message, details)
                is_error, blocks = envelope.is_error(code, self._policy), []
            else:
                data = envelope.data_of(raw)
                written, blocks, is_error = envelope.success(data.raw), data.blocks, False
        except (ProtocolError, ValueError):
            return outcome
        wrapped = self._result(call.client, written, is_error, blocks, False).result
        members["result"] = Raw(wrapped)
        return Outcome(encode_members(members), outcome.era, outcome.glance)


def _may_hold(call: Call, outcome: Outcome) -> bool:
    """Whether a result that says so really waits for a human: this node made it, or one below. Any
    other server could send people to a page of its own with it."""
    return outcome.glance is None or (call.route is not None and bool(call.route.way))


def _code_in(written: bytes) -> str:
    """The code of a failure that was written already."""
    return str(decode_value(written)["error"]["code"])
