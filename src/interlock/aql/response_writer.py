"""The AQL response of a call: the envelope around the result of its tool, or an error.

What belongs to MCP and not to AQL passes as it is: questions of servers, tasks, and whatever says
that the request itself was none.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import msgspec
from msgspec import Raw

from interlock import errors
from interlock.aql import argument_errors, error_mapping
from interlock.aql.config import AqlConfig, OperationConfig
from interlock.aql.confirmation_tokens import ConfirmationTokens
from interlock.aql.error_mapping import ErrorReport
from interlock.aql.fast_path import UNSTRUCTURED
from interlock.aql.language import envelope
from interlock.aql.language import errors as aql_errors
from interlock.aql.language import fields as field_selection
from interlock.aql.language.collections import ITEMS, CollectionSchema, shape
from interlock.aql.language.cursors import CursorCodec
from interlock.aql.language.envelope import ResultData
from interlock.aql.language.errors import AqlError
from interlock.aql.language.limits import check_response
from interlock.aql.request import AqlRequest, AqlWarning
from interlock.aql.warnings import (
    deprecation_warning,
    earlier_sentence,
    earlier_warning,
    ranked,
    slow_warning,
    truncated_warning,
)
from interlock.core.call import Call, Client, Outcome, UpstreamResponseError
from interlock.core.pipeline.internal_error import internal_error
from interlock.core.ports import CallResult
from interlock.errors import InterlockError, ProtocolError
from interlock.protocol.aql_terms import BUILTIN_KEY, BUILTIN_SEGMENT
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members
from interlock.protocol.mcp import (
    INPUT_REQUIRED,
    TASK,
    TASKS_GET,
    TOOLS_CALL,
    Era,
    summarize_result,
)
from interlock.protocol.mcpax import STATUS
from interlock.trust.approvals.response import URL_FIRST, kept_at, needed_below

# -- The data of an answer as it was asked for: fewer fields, or a part of a list. Pure.

UNKNOWN_FIELD: Final = "VALIDATION_UNKNOWN_FIELD_WARNING"
_MOST_NAMED: Final = 20
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def shaped(
    data: ResultData, asked: AqlRequest, cursors: CursorCodec, *, page: int, most: int
) -> tuple[bytes, list[AqlWarning]]:
    """JSON, and what is to be said about it. Raises AqlError."""
    warnings: list[AqlWarning] = []
    value = _decode(data.raw) if data.json else None
    if asked.shaping is not None:
        return _encode(_part(value, asked, cursors, warnings, page, most)), warnings
    if value is None:
        # There are no fields in prose: it is given whole.
        if not asked.fields.everything:
            warnings.append(_no_fields(asked))
        return data.raw, warnings
    _look_for(field_selection.items_of(value, asked.fields), asked, warnings)
    return _encode(field_selection.apply(value, asked.fields)), warnings


def _part(
    value: Any,
    asked: AqlRequest,
    cursors: CursorCodec,
    warnings: list[AqlWarning],
    page: int,
    most: int,
) -> Any:
    spec = asked.shaping or {}
    name = _list_of(value, asked)
    items = value if name is None else value[name]
    found = shape(
        items, spec, CollectionSchema(asked.operation.name), cursors, page=page, most=most
    )
    if found.clamped:
        warnings.append(truncated_warning("items", found.clamped, most, most))
    select = None
    fields = asked.fields
    if fields is not None:
        _look_for(items, asked, warnings)

        def select(one: Any) -> Any:
            return field_selection.apply(one, fields)

    data = found.data(select)
    if name is None or found.only_numbers:
        return data
    # What the server said beside its list is still true.
    return {**{key: one for key, one in value.items() if key != name}, **data}


def _list_of(value: Any, asked: AqlRequest) -> str | None:
    """The member of the data that is meant. None: the data is the list. Raises AqlError."""
    named = (asked.shaping or {}).get(ITEMS)
    if named is None and isinstance(value, list) and _are_objects(value):
        return None
    lists = field_selection.lists_in(value) if isinstance(value, dict) else []
    if named is not None:
        if named in lists:
            return str(named)
        raise _no_list(asked, lists, f"gave no list of objects called '{aql_errors.shown(named)}'")
    full = [name for name in lists if value[name]]
    if len(full) == 1 or len(lists) == 1:
        return (full or lists)[0]
    if lists:
        count = len(lists)
        raise _no_list(asked, lists, f"gave {count} lists: name one with '_{ITEMS}'")
    raise _no_list(asked, lists, "gave no list of objects")


def _are_objects(items: list[Any]) -> bool:
    return all(isinstance(one, dict) for one in items)


def _no_list(asked: AqlRequest, lists: list[str], why: str) -> AqlError:
    given = ", ".join(f"'_{name}'" for name in sorted(asked.shaping or ()))
    reason = "several_collections" if len(lists) > 1 else "no_collection"
    details: dict[str, Any] = {"operation": asked.operation.name, "reason": reason}
    there = "Leave it out."
    if lists:
        details["lists"] = [aql_errors.short(name) for name in lists[:_MOST_NAMED]]
        there = f"There are: {aql_errors.listed(details['lists'])}."
    return AqlError(
        "VALIDATION_INVALID_STATE",
        f"The operation {why}, so {given} cannot be applied. {there}",
        details,
    )


# -- fields that are not there


def _look_for(items: Any, asked: AqlRequest, warnings: list[AqlWarning]) -> None:
    fields = asked.fields
    if fields is None or not fields.tree:
        return
    strange = field_selection.absent(items, fields)
    if strange:
        known = sorted({str(name) for one in items if isinstance(one, dict) for name in one})
        shown = [aql_errors.short(name) for name in strange[:_MOST_NAMED]]
        warnings.append(
            AqlWarning(
                UNKNOWN_FIELD,
                f"Nothing in the answer has {aql_errors.listed(shown)}.",
                {"unknown_fields": shown, "valid_fields": known[:_MOST_NAMED]},
            )
        )


def _no_fields(asked: AqlRequest) -> AqlWarning:
    return AqlWarning(
        UNKNOWN_FIELD,
        "The answer is text without fields, and comes whole.",
        {
            "unknown_fields": [
                aql_errors.short(name) for name in list(asked.fields.tree)[:_MOST_NAMED]
            ]
        },
    )


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
BATCH: Final = f"{BUILTIN_SEGMENT}.batch"
WHOLE: Final = frozenset({BATCH, f"{BUILTIN_SEGMENT}.read_modify_write"})
"""Tools of the node's own that give a whole answer: it is made of answers."""
PAUSED: Final = f"{BUILTIN_SEGMENT}.continue_quota"
"""What a call has become whose caller has used up a quota."""
FAILURE: Final = b'{"success":false'
_STATUS: Final = STATUS.encode()
_log = logging.getLogger("interlock.aql")


class QuotaReporter(Protocol):
    """Describes a quota that waits for a human."""

    def paused(self, call: Call, required: ErrorReport) -> ErrorReport: ...


class ResponseWriter:
    """Writes the AQL response of a call."""

    def __init__(
        self,
        config: AqlConfig,
        *,
        clock: Callable[[], float],
        cursors: CursorCodec,
        settings: Callable[[str], OperationConfig],
        tokens: ConfirmationTokens | None = None,
        quotas: QuotaReporter | None = None,
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

    def __call__(
        self, call: Call, outcome: Outcome | None, error: InterlockError | None
    ) -> CallResult:
        """Never raises."""
        if call.method != TOOLS_CALL:
            if call.method == TASKS_GET and outcome is not None and call.upstream != BUILTIN_KEY:
                return self._task(call, outcome), None
            return outcome, error
        asked = cast("AqlRequest | None", call.operation_request)
        if asked is None and (call.view is None or call.name not in call.view.tools):
            # It named no endpoint: that is for MCP to tell.
            return outcome, error
        item = asked is not None and asked.item
        try:
            if error is None and outcome is not None:
                glance = outcome.summary or summarize_result(outcome.result)
                if glance.result_type in _NO_RESULT and not item:
                    return outcome, None
                if not glance.is_error:
                    written, blocks = self._success(call, asked, outcome.result)
                    failed = False
                    if written.startswith(FAILURE):
                        failed = envelope.is_error(_code_in(written), self._policy)
                    elif self._policy == "mcp" and _is_batch(asked):
                        # The draft calls a batch a success once it was processed (OPS 7.3). A
                        # client or a trace that reads only `isError` must not take it for one.
                        failed = not envelope.any_succeeded(written)
                    return self._result(call.client, written, failed, blocks, item), None
                found = self._failed(call, outcome)
            elif error is None or (self._is_of_mcp(error) and not item):
                return outcome, error
            else:
                found = self._error(call, error)
        except AqlError as refused:
            found = error_mapping.of_error(refused)
        except Exception as bug:
            found = error_mapping.of_error(internal_error(call, bug))
        return self._failure(call, found, item), None

    # -- success

    def _success(
        self, call: Call, asked: AqlRequest | None, result: bytes
    ) -> tuple[bytes, list[Raw]]:
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
        if call.approval_id and (earlier := self._earlier(call, result)):
            warnings = [*(warnings or ()), earlier_warning(earlier)]
        if asked.fields is not None or asked.shaping is not None:
            limits = self._limits
            raw, more = shaped(data, asked, self._cursors, page=limits.page, most=limits.most_page)
            warnings = [*(warnings or ()), *more]
        took = self._clock() - call.started_at
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

    def _deprecated(
        self, asked: AqlRequest, warnings: list[AqlWarning] | None
    ) -> list[AqlWarning] | None:
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
        if isinstance(error, UpstreamResponseError) and error.code == URL_FIRST:
            return True
        return not isinstance(error, AqlError) and error.failure.name in _PASSED

    def _failed(self, call: Call, outcome: Outcome) -> ErrorReport:
        result = outcome.result
        if (
            self._tokens is not None
            and isinstance(call.operation_request, AqlRequest)
            and _STATUS in result
            and _may_hold(call, outcome)
            and needed_below(result) is not None
        ):
            required = self._tokens.required(call, result)
            if required is not None:
                if call.name == PAUSED and self._quotas is not None:
                    return self._quotas.paused(call, required)
                return required
        found = error_mapping.of_result(result)
        if call.approval_id and (earlier := self._earlier(call, result)):
            message = f"{found.message} {earlier_sentence(earlier)}"
            return ErrorReport(found.code, message, {**found.details, "earlier_result": earlier})
        return found

    def _earlier(self, call: Call, result: bytes) -> dict[str, Any] | None:
        """Which earlier call a result is of. None: it is the result of this call."""
        executed_at = kept_at(result, call.approval_id)
        if not executed_at:
            return None
        earlier = {"approval_id": call.approval_id, "executed_at": executed_at}
        by = "" if self._tokens is None else self._tokens.approver(call.approval_id)
        return {**earlier, "approved_by": by} if by else earlier

    def _error(self, call: Call, error: InterlockError) -> ErrorReport:
        asked = call.operation_request
        if (
            error.failure is errors.INVALID_ARGUMENTS
            and not isinstance(error, AqlError)
            and isinstance(asked, AqlRequest)
            and isinstance(call.decoded_arguments, dict)
        ):
            found = argument_errors.fault(asked.operation, call.decoded_arguments)
            if found is not None:
                return error_mapping.of_error(found)
        return error_mapping.of_error(error)

    def _failure(self, call: Call, found: ErrorReport, item: bool) -> Outcome:
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
            if summarize_result(raw).is_error:
                code, message, details = error_mapping.of_result(raw)
                written: bytes = envelope.failure(code, message, details)
                is_error, blocks = envelope.is_error(code, self._policy), []
            else:
                data = envelope.data_of(raw)
                written, blocks, is_error = envelope.success(data.raw), data.blocks, False
        except (ProtocolError, ValueError):
            return outcome
        wrapped = self._result(call.client, written, is_error, blocks, False).result
        members["result"] = Raw(wrapped)
        return Outcome(encode_members(members), outcome.era, outcome.summary)


def _may_hold(call: Call, outcome: Outcome) -> bool:
    """Whether a result that says so really waits for a human: this node made it, or one below. Any
    other server could send people to a page of its own with it."""
    return outcome.summary is None or (call.route is not None and bool(call.route.route_members))


def _is_batch(asked: AqlRequest | None) -> bool:
    return asked is not None and asked.operation.canonical == BATCH


def _code_in(written: bytes) -> str:
    """The code of a failure that was written already."""
    return str(decode_value(written)["error"]["code"])
