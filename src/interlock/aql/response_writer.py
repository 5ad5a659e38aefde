"""The AQL response of a call: the envelope around the result of its tool, or an error.

Results that belong to MCP and not to AQL pass unchanged: client requests of servers, tasks, and
errors of invalid MCP requests.
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
from interlock.aql.language.collections import ITEMS, CollectionSchema, query_collection
from interlock.aql.language.cursors import CursorCodec
from interlock.aql.language.envelope import ResultData
from interlock.aql.language.errors import AqlError
from interlock.aql.language.limits import check_response
from interlock.aql.request import AqlRequest, AqlWarning
from interlock.aql.warnings import (
    deprecation_warning,
    earlier_result_sentence,
    earlier_result_warning,
    rank_warnings,
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
from interlock.trust.approvals.response import (
    URL_REQUIRED_CODE,
    read_child_approval,
    read_executed_at,
)

# The data of a response with the requested fields, or a page of a list. Pure functions.

UNKNOWN_FIELD: Final = "VALIDATION_UNKNOWN_FIELD_WARNING"
_MAX_NAMED_FIELDS: Final = 20
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def shape_data(
    data: ResultData, request: AqlRequest, cursors: CursorCodec, *, page: int, max_items: int
) -> tuple[bytes, list[AqlWarning]]:
    """Return the data as JSON, and the warnings about it. Raises AqlError."""
    warnings: list[AqlWarning] = []
    value = _decode(data.raw) if data.json else None
    if request.shaping is not None:
        return _encode(_select_page(value, request, cursors, warnings, page, max_items)), warnings
    if value is None:
        # Text has no fields, so it is returned as it is.
        if not request.fields.everything:
            warnings.append(_no_fields_warning(request))
        return data.raw, warnings
    _warn_unknown_fields(field_selection.items_of(value, request.fields), request, warnings)
    return _encode(field_selection.apply(value, request.fields)), warnings


def _select_page(
    value: Any,
    request: AqlRequest,
    cursors: CursorCodec,
    warnings: list[AqlWarning],
    page: int,
    max_items: int,
) -> Any:
    shaping = request.shaping or {}
    name = _find_list(value, request)
    items = value if name is None else value[name]
    page_result = query_collection(
        items,
        shaping,
        CollectionSchema(request.operation.name),
        cursors,
        page=page,
        maximum=max_items,
    )
    if page_result.clamped:
        warnings.append(truncated_warning("items", page_result.clamped, max_items, max_items))
    select_fields = None
    fields = request.fields
    if fields is not None:
        _warn_unknown_fields(items, request, warnings)

        def select_fields(item: Any) -> Any:
            return field_selection.apply(item, fields)

    data = page_result.data(select_fields)
    if name is None or page_result.is_aggregate_only:
        return data
    # Other members beside the list are still valid.
    return {**{member: item for member, item in value.items() if member != name}, **data}


def _find_list(value: Any, request: AqlRequest) -> str | None:
    """Return the name of the list in the data.

    None: the data itself is the list. Raises AqlError.
    """
    list_name = (request.shaping or {}).get(ITEMS)
    if list_name is None and isinstance(value, list) and _are_objects(value):
        return None
    lists = field_selection.lists_in(value) if isinstance(value, dict) else []
    if list_name is not None:
        if list_name in lists:
            return str(list_name)
        raise _no_list_error(
            request, lists, f"returned no list of objects named '{aql_errors.quotable(list_name)}'"
        )
    non_empty = [name for name in lists if value[name]]
    if len(non_empty) == 1 or len(lists) == 1:
        return (non_empty or lists)[0]
    if lists:
        count = len(lists)
        raise _no_list_error(request, lists, f"returned {count} lists: choose one with '_{ITEMS}'")
    raise _no_list_error(request, lists, "returned no list of objects")


def _are_objects(items: list[Any]) -> bool:
    return all(isinstance(item, dict) for item in items)


def _no_list_error(request: AqlRequest, lists: list[str], problem: str) -> AqlError:
    options = ", ".join(f"'_{name}'" for name in sorted(request.shaping or ()))
    reason = "several_collections" if len(lists) > 1 else "no_collection"
    details: dict[str, Any] = {"operation": request.operation.name, "reason": reason}
    hint = f"Remove {options}."
    if lists:
        details["lists"] = [aql_errors.shorten(name) for name in lists[:_MAX_NAMED_FIELDS]]
        hint = f"Available lists: {aql_errors.format_names(details['lists'])}."
    return AqlError(
        "VALIDATION_INVALID_STATE",
        f"The operation {problem}, so {options} cannot be applied. {hint}",
        details,
    )


# -- unknown fields


def _warn_unknown_fields(items: Any, request: AqlRequest, warnings: list[AqlWarning]) -> None:
    fields = request.fields
    if fields is None or not fields.tree:
        return
    unknown_fields = field_selection.find_missing_fields(items, fields)
    if unknown_fields:
        valid_fields = sorted(
            {str(name) for item in items if isinstance(item, dict) for name in item}
        )
        shown_fields = [aql_errors.shorten(name) for name in unknown_fields[:_MAX_NAMED_FIELDS]]
        warnings.append(
            AqlWarning(
                UNKNOWN_FIELD,
                f"The result has no {aql_errors.format_names(shown_fields)}.",
                {"unknown_fields": shown_fields, "valid_fields": valid_fields[:_MAX_NAMED_FIELDS]},
            )
        )


def _no_fields_warning(request: AqlRequest) -> AqlWarning:
    return AqlWarning(
        UNKNOWN_FIELD,
        "The result is text without fields. It is returned in full.",
        {
            "unknown_fields": [
                aql_errors.shorten(name) for name in list(request.fields.tree)[:_MAX_NAMED_FIELDS]
            ]
        },
    )


_MCP_ERRORS: Final = frozenset(
    failure_kind.name
    for failure_kind in (
        errors.UNAUTHENTICATED,
        errors.UNKNOWN_SESSION,
        errors.CANCELLED,
        errors.HEADER_MISMATCH,
        errors.INVALID_STATE,
        errors.UNSUPPORTED_VERSION,
    )
)
"""Errors of MCP requests. They are not errors of operations."""
_INCOMPLETE_RESULTS: Final = frozenset({INPUT_REQUIRED, TASK})
"""Result types of calls that have no result yet."""
BATCH: Final = f"{BUILTIN_SEGMENT}.batch"
COMPOSED: Final = frozenset({BATCH, f"{BUILTIN_SEGMENT}.read_modify_write"})
"""Built-in tools that return a complete response, composed of the responses of child calls."""
QUOTA_PAUSE: Final = f"{BUILTIN_SEGMENT}.continue_quota"
"""The tool of a call that waits because its caller has used up a quota."""
FAILURE_HEAD: Final = b'{"success":false'
_STATUS: Final = STATUS.encode()
_log = logging.getLogger("interlock.aql")


class QuotaReporter(Protocol):
    """Describes a quota that waits for approval."""

    def report_pause(self, call: Call, required: ErrorReport) -> ErrorReport: ...


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
        """
        Args:
            settings: returns the config of a tool, by its canonical name.
            tokens: the confirmation tokens. None: the node has no approvals.
        """
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
        self._slow_seconds = config.slow_ms / 1000
        self._has_operation_settings = bool(config.operations)

    def __call__(
        self, call: Call, outcome: Outcome | None, error: InterlockError | None
    ) -> CallResult:
        """Write the response of a call. Never raises."""
        if call.method != TOOLS_CALL:
            if call.method == TASKS_GET and outcome is not None and call.upstream != BUILTIN_KEY:
                return self._convert_task(call, outcome), None
            return outcome, error
        request = cast("AqlRequest | None", call.operation_request)
        if request is None and (call.view is None or call.name not in call.view.tools):
            # The call named no endpoint: this is an MCP error.
            return outcome, error
        is_item = request is not None and request.item
        try:
            if error is None and outcome is not None:
                glance = outcome.summary or summarize_result(outcome.result)
                if glance.result_type in _INCOMPLETE_RESULTS and not is_item:
                    return outcome, None
                if not glance.is_error:
                    written, blocks = self._write_success(call, request, outcome.result)
                    failed = False
                    if written.startswith(FAILURE_HEAD):
                        failed = envelope.is_error(_error_code_of(written), self._policy)
                    elif self._policy == "mcp" and _is_batch(request):
                        # The draft calls a processed batch a success (OPS 7.3). Clients and traces
                        # that read only `isError` must not take a failed batch for one.
                        failed = not envelope.any_succeeded(written)
                    return self._tool_result(call.client, written, failed, blocks, is_item), None
                report = self._report_failed_result(call, outcome)
            elif error is None or (self._is_mcp_error(error) and not is_item):
                return outcome, error
            else:
                report = self._report_error(call, error)
        except AqlError as error:
            report = error_mapping.map_error(error)
        except Exception as bug:
            report = error_mapping.map_error(internal_error(call, bug))
        return self._write_failure(call, report, is_item), None

    # -- success

    def _write_success(
        self, call: Call, request: AqlRequest | None, result: bytes
    ) -> tuple[bytes, list[Raw]]:
        """Raises AqlError."""
        try:
            data = envelope.data_of(result)
        except ValueError:
            raise AqlError("INTERNAL_ERROR", "The server returned no valid tool result.") from None
        raw = data.raw
        if request is None or request.operation.canonical in COMPOSED:
            return raw, data.blocks
        if request.operation.builtin is not None and not data.json:
            # Structured content cannot express null.
            raw = envelope.NULL
        warnings, meta = request.warnings, None
        if call.approval_id and (earlier_result := self._describe_earlier_call(call, result)):
            warnings = [*(warnings or ()), earlier_result_warning(earlier_result)]
        if request.fields is not None or request.shaping is not None:
            limits = self._limits
            raw, page_warnings = shape_data(
                data, request, self._cursors, page=limits.page, max_items=limits.max_page
            )
            warnings = [*(warnings or ()), *page_warnings]
        seconds = self._clock() - call.started_at
        if seconds >= self._slow_seconds:
            hint = "Use '_async' to run it in the background."
            slow = slow_warning(request.operation.name, seconds, self._slow_seconds, [hint])
            warnings = [*(warnings or ()), slow]
        if self._has_operation_settings:
            warnings = self._add_deprecation(request, warnings)
        if request.request_id:
            meta = envelope.request_meta(request.request_id, seconds * 1000)
        if warnings:
            warnings = rank_warnings(warnings)
        written = envelope.write_success(raw, warnings or (), meta)
        check_response(len(written), self._limits)
        return written, data.blocks

    def _add_deprecation(
        self, request: AqlRequest, warnings: list[AqlWarning] | None
    ) -> list[AqlWarning] | None:
        settings = self._settings(request.operation.canonical)
        if settings.deprecated is None:
            return warnings
        warning = deprecation_warning(
            "operation",
            request.operation.name,
            since=settings.deprecated,
            replacement=settings.replacement or "",
        )
        return [*(warnings or ()), warning]

    # -- failure

    def _is_mcp_error(self, error: InterlockError) -> bool:
        if isinstance(error, UpstreamResponseError) and error.code == URL_REQUIRED_CODE:
            return True
        return not isinstance(error, AqlError) and error.failure.name in _MCP_ERRORS

    def _report_failed_result(self, call: Call, outcome: Outcome) -> ErrorReport:
        result = outcome.result
        if (
            self._tokens is not None
            and isinstance(call.operation_request, AqlRequest)
            and _STATUS in result
            and _is_trusted_pending_result(call, outcome)
            and read_child_approval(result) is not None
        ):
            approval_report = self._tokens.report_pending(call, result)
            if approval_report is not None:
                if call.name == QUOTA_PAUSE and self._quotas is not None:
                    return self._quotas.report_pause(call, approval_report)
                return approval_report
        report = error_mapping.map_result(result)
        if call.approval_id and (earlier_result := self._describe_earlier_call(call, result)):
            message = f"{report.message} {earlier_result_sentence(earlier_result)}"
            return ErrorReport(
                report.code, message, {**report.details, "earlier_result": earlier_result}
            )
        return report

    def _describe_earlier_call(self, call: Call, result: bytes) -> dict[str, Any] | None:
        """Describe the earlier call that a result belongs to. None: it belongs to this call."""
        executed_at = read_executed_at(result, call.approval_id)
        if not executed_at:
            return None
        earlier_result = {"approval_id": call.approval_id, "executed_at": executed_at}
        approver = "" if self._tokens is None else self._tokens.approver(call.approval_id)
        return {**earlier_result, "approved_by": approver} if approver else earlier_result

    def _report_error(self, call: Call, error: InterlockError) -> ErrorReport:
        request = call.operation_request
        if (
            error.failure is errors.INVALID_ARGUMENTS
            and not isinstance(error, AqlError)
            and isinstance(request, AqlRequest)
            and isinstance(call.decoded_arguments, dict)
        ):
            report = argument_errors.explain_error(request.operation, call.decoded_arguments)
            if report is not None:
                return error_mapping.map_error(report)
        return error_mapping.map_error(error)

    def _write_failure(self, call: Call, report: ErrorReport, is_item: bool) -> Outcome:
        code, message, details = report
        if envelope.is_error(code):
            # The caller can quote this id to the person who reads the log.
            details = {**details, "correlation_id": os.urandom(6).hex()}
            _log.warning(
                "aql: error %s: %s in %.100s, caller %s: %.300s",
                details["correlation_id"],
                code,
                call.name,
                "" if call.caller is None else call.caller.name,
                details.get("upstream_error") or message,
            )
        elif code.startswith("PERMISSION_") and self._tokens is not None:
            self._tokens.record_denial(call, code)
        written = envelope.write_failure(code, message, details)
        return self._tool_result(
            call.client, written, envelope.is_error(code, self._policy), (), is_item
        )

    # -- as a result of MCP

    def _tool_result(
        self, client: Client, written: bytes, is_error: bool, blocks: Any, is_item: bool
    ) -> Outcome:
        era = client.era
        if is_item:
            # The batch combines the responses of its items.
            return Outcome(written, Era.SESSION)
        structured = self._structured and client.revision not in UNSTRUCTURED
        result = envelope.write_tool_result(
            written, is_error=is_error, structured=structured, blocks=blocks, era=era
        )
        return Outcome(result, era)

    def _convert_task(self, call: Call, outcome: Outcome) -> Outcome:
        """Convert the result of a task, if it has one, to an AQL response."""
        try:
            members = decode_members(outcome.result)
            inner = members.get("result")
            if inner is None:
                return outcome
            raw = bytes(inner)
            if summarize_result(raw).is_error:
                code, message, details = error_mapping.map_result(raw)
                written: bytes = envelope.write_failure(code, message, details)
                is_error, blocks = envelope.is_error(code, self._policy), []
            else:
                data = envelope.data_of(raw)
                written, blocks, is_error = envelope.write_success(data.raw), data.blocks, False
        except (ProtocolError, ValueError):
            return outcome
        wrapped = self._tool_result(call.client, written, is_error, blocks, False).result
        members["result"] = Raw(wrapped)
        return Outcome(encode_members(members), outcome.era, outcome.summary)


def _is_trusted_pending_result(call: Call, outcome: Outcome) -> bool:
    """Return whether a pending result comes from this node or from a node below.

    A result of any other server is not trusted: it could send people to a page of its own.
    """
    return outcome.summary is None or (call.route is not None and bool(call.route.route_members))


def _is_batch(request: AqlRequest | None) -> bool:
    return request is not None and request.operation.canonical == BATCH


def _error_code_of(written: bytes) -> str:
    """Return the error code of an encoded failure."""
    return str(decode_value(written)["error"]["code"])
