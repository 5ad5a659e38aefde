"""The AQL stage of the pipeline. It runs after authentication and before the resolution of the
tool.

The stage turns an operation into a call of its tool. The call then takes the same path as every
other call: all checks (policy, approval, budgets) come after this stage, so an endpoint bypasses
none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, cast

from msgspec import Raw

from interlock.aql import fast_path, operations, translation
from interlock.aql.builtin_operations import BuiltinUpstream
from interlock.aql.config import AqlConfig
from interlock.aql.fast_path import FastPath
from interlock.aql.language import collections as value_formats
from interlock.aql.language import errors
from interlock.aql.language import request as request_reader
from interlock.aql.language.errors import AqlError
from interlock.aql.language.request import BatchRequest, SingleRequest
from interlock.aql.operations import (
    BuiltinOperation,
    Operation,
    OperationCatalogBuilder,
    OperationSnapshot,
)
from interlock.aql.request import AqlRequest, ChildRequest, create_child_call
from interlock.core.call import EMPTY_OBJECT, Call, Outcome
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.effects import EffectLevel
from interlock.core.catalog.offering import Tool
from interlock.core.catalog.snapshot import Snapshot, View
from interlock.core.catalog.token_costs import count_tool_tokens
from interlock.core.pipeline.internal_error import internal_error
from interlock.core.ports import CallHost, CallResult, OperationMatch
from interlock.errors import INVALID_CURSOR, UNKNOWN_TOOL, InterlockError
from interlock.protocol.aql_terms import PLAIN_VIEW, Category, EndpointFamily, OperationView
from interlock.protocol.jsonrpc import decode_value
from interlock.protocol.mcp import TOOLS_CALL, TOOLS_LIST, Era

BATCH: Final = "batch"
PREVIEW: Final = "preview"
START: Final = "start_execution"
MERGE: Final = "read_modify_write"
"""Names of the hidden tools that only the stage calls. They are in no operation catalog."""

ANSWERED: Final = None
"""The call has been answered, or will be."""
CHECKED: Final = True
"""The call has its tool, its route and arguments that are valid for the tool's schema."""
GOES_ON: Final = False
"""The call continues like any other: it is a call of a tool, or never was an AQL request."""


UsageEvent = tuple[str, str, bool]
"""A used tool: its canonical name, the name of the caller, and True if the call succeeded."""


class CallCounter(Protocol):
    """Counts the calls of callers against quotas and limits."""

    active: bool
    """True if there is anything to count."""

    def admit(self, call: Call, request: AqlRequest, continued: str = "") -> object:
        """Count a call that is about to be made.

        The call may be replaced by a call that waits for approval. The method may add warnings.

        Raises:
            AqlError: A quota or limit is used up.
        """

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """Handle the end of a call, whether it was counted or not."""


class TokenVerifier(Protocol):
    """Checks confirmation tokens."""

    def check(self, call: Call, request: AqlRequest) -> None:
        """Check the confirmation token of a request. Raises AqlError."""


class ToolListBuilder(Protocol):
    """Builds the `tools/list` result of an AQL view."""

    def tools(
        self,
        operation_view: OperationView,
        operation_catalog: OperationSnapshot,
        view: View | None,
        era: Era,
    ) -> bytes: ...


class ViewAuthorizer(Protocol):
    """Decides which tools a caller sees, and who may make other requests."""

    @property
    def view_of(self) -> Callable[[Call], View | None]: ...

    def authorize_method(self, call: Call) -> None:
        """Authorize a request that is no tool call. Raises InterlockError."""


class AqlStage:
    """Resolves AQL requests to tool calls, and writes their responses."""

    def __init__(
        self,
        config: AqlConfig,
        *,
        host: CallHost,
        catalog_builder: OperationCatalogBuilder,
        catalog: Catalog,
        builtin_upstream: BuiltinUpstream,
        authorizer: ViewAuthorizer,
        listing: ToolListBuilder,
        response_writer: Callable[[Call, Outcome | None, InterlockError | None], CallResult],
        choose_view: Callable[
            [int, int, OperationView], OperationView
        ] = lambda _, __, operation_view: operation_view,
        tokens: TokenVerifier | None = None,
        quotas: CallCounter | None = None,
        get_absent_servers: Callable[[], Mapping[str, str]] = dict,
        on_used: Callable[[UsageEvent], None] | None = None,
    ) -> None:
        """
        Args:
            response_writer: writes the response of a call.
            choose_view: returns the view that `auto` shows, or PLAIN. Takes the tokens of the plain
                tools, the limit, and the view.
            get_absent_servers: returns the segments of configured servers that have listed no tools
                yet, with their state.
            on_used: takes a usage event for each finished call. It must be fast.
        """
        self._host = host
        self._catalog_builder = catalog_builder
        self._catalog = catalog
        self._builtin_upstream = builtin_upstream
        self._authorizer = authorizer
        self._listing = listing
        self._write_response = response_writer
        self._choose_view = choose_view
        self.quotas = quotas
        self.tokens = tokens
        self.on_used = on_used
        self.get_absent_servers = get_absent_servers
        self._snapshot: Snapshot | None = None
        self._operation_catalog: OperationSnapshot | None = None
        self._last_families: dict[Operation, EndpointFamily] = {}
        self._formats: dict[Operation, tuple[tuple[str, str, str], ...]] = {}
        self._sizes: dict[Any, int] = {}
        self._fast_path = FastPath()
        self._names: Mapping[str, Tool] = {}
        """The catalog's names when the operation catalog was built. When they change, the
        operation catalog is rebuilt."""
        self.configure(config)

    def configure(self, config: AqlConfig) -> None:
        """Apply the settings of a config. They may change while the node runs."""
        self._limits = config.limits
        self._auto_tokens = config.auto_tokens
        self._structured = config.structured_content
        self._slow = config.slow_ms / 1000
        self._has_no_operation_settings = not config.operations
        """True if the config has no settings for single operations."""
        self._has_read_modify_write = any(
            settings.read_modify_write for settings in config.operations.values()
        )
        self._snapshot = None
        self._fast_path.clear()

    @property
    def in_use(self) -> bool:
        """True if any client has requested operations.

        A node that serves plain tools only builds no operation catalog: for thousands of tools, the
        catalog and its search index need more memory than everything else.
        """
        return self._operation_catalog is not None

    def operation_catalog(self) -> OperationSnapshot:
        """Return the operation catalog of the current snapshot."""
        snapshot = self._catalog.current
        operation_catalog = self._operation_catalog
        if operation_catalog is None or snapshot is not self._snapshot:
            operation_catalog = self._operation_catalog = self._catalog_builder.build(snapshot)
            self._snapshot = snapshot
            self._names = self._catalog.by_name
            self._fast_path.clear()
            self._last_families.clear()
            self._formats.clear()
            self._sizes.clear()
        return operation_catalog

    def find(self, name: str, operation_view: OperationView) -> Operation | None:
        """Return the operation of this name in a view."""
        return self.operation_catalog().find_in(name, operation_view)

    # -- requests

    def resolve_operation(self, call: Call) -> OperationMatch:
        request = call.operation_request
        operation_view = call.view
        quotas = self.quotas
        assert operation_view is not None
        if request is not None:
            if type(request) is ChildRequest:
                self._resolve_child(call, operation_view, request)
            elif quotas is not None and quotas.active:
                quotas.admit(call, cast("AqlRequest", request))
            return GOES_ON
        if call.method == TOOLS_CALL:
            if (
                self._catalog.by_name is self._names
                and (quotas is None or not quotas.active)
                and self._fast_path.resolve_operation(call, operation_view)
            ):
                return CHECKED
            tools = operation_view.tools
            name = call.name
            if name not in tools:
                if operation_view.mode != "auto":
                    raise _no_endpoint_error(name, operation_view)
                # A plain tool, which `auto` lists. Its response is plain; the rules of a view still
                # apply to it.
                return GOES_ON
            # An endpoint has no parameter headers, so the headers cannot contradict its arguments.
            call.header_params = None
            parsed_request = request_reader.read_request(call.arguments, self._limits)
            family = tools[name]
            if type(parsed_request) is SingleRequest:
                self._resolve_single(call, operation_view, family, parsed_request)
            else:
                assert isinstance(parsed_request, BatchRequest)
                self._resolve_batch(call, operation_view, family, parsed_request)
            return GOES_ON
        if call.method == TOOLS_LIST and self._respond_to_list(call, operation_view):
            return ANSWERED
        return GOES_ON

    def write_response(
        self,
        call: Call,
        outcome: Outcome | None,
        error: InterlockError | None,
        duration: float = 0.0,
    ) -> CallResult:
        on_used, quotas = self.on_used, self.quotas
        route, caller = call.route, call.caller
        caller_name = "" if caller is None else caller.name
        if (
            outcome is None
            or error is not None
            or (glance := outcome.summary) is None
            or glance.is_error
        ):
            if on_used is not None and route is not None:
                on_used((route.canonical, caller_name, False))
            return self._finish_counted_call(call, outcome, error)
        if on_used is not None and route is not None:
            on_used((route.canonical, caller_name, True))
        if quotas is not None and quotas.active:
            return self._finish_counted_call(call, outcome, error)
        if self._has_no_operation_settings and duration < self._slow and not call.approval_id:
            fast_outcome = fast_path.write_fast_response(call, outcome, glance, self._structured)
            if fast_outcome is not None:
                return fast_outcome, None
        return self._write_response(call, outcome, error)

    def _finish_counted_call(
        self, call: Call, outcome: Outcome | None, error: InterlockError | None
    ) -> CallResult:
        """Update the counters, then write the response."""
        if self.quotas is not None:
            try:
                self.quotas.on_result(call, outcome, error)
            except Exception as bug:
                return self._write_response(call, None, internal_error(call, bug))
        return self._write_response(call, outcome, error)

    def _respond_to_list(self, call: Call, operation_view: OperationView) -> bool:
        self._authorizer.authorize_method(call)
        view = self._authorizer.view_of(call)
        era = call.client.era
        if operation_view.mode == "auto":
            operation_view = self._choose_view(
                self._plain_tokens(view), self._auto_tokens, operation_view
            )
            if operation_view is PLAIN_VIEW:
                return False
        if call.cursor is not None:
            raise InterlockError(
                INVALID_CURSOR, "This list has one page. Request it without a cursor."
            )
        page = self._listing.tools(operation_view, self.operation_catalog(), view, era)
        self._host.finish(call, Outcome(page, era), None)
        return True

    def check_encoding(self, body: bytes) -> tuple[bytes, InterlockError] | None:
        """Return the id of a call whose body is not valid UTF-8, and the error for it."""
        unreadable_call = request_reader.find_unreadable_call(body)
        return (
            None
            if unreadable_call is None
            else (unreadable_call[0], errors.invalid_encoding("arguments", unreadable_call[1]))
        )

    def shows_tools(self, operation_view: OperationView) -> bool:
        """Return whether `auto` lists plain tools now, for a caller that sees every tool."""
        return (
            self._choose_view(self._plain_tokens(None), self._auto_tokens, operation_view)
            is PLAIN_VIEW
        )

    def _plain_tokens(self, view: View | None) -> int:
        """Return how many tokens the plain tool list costs a model."""
        tools = self.operation_catalog().snapshot.plain_tools
        key = None if view is None else view.key
        size = self._sizes.get(key)
        if size is None:
            size = self._sizes[key] = sum(
                count_tool_tokens(tool) for tool in tools if view is None or view.includes(tool)
            )
        return size

    # -- resolution of requests

    def _resolve_single(
        self,
        call: Call,
        operation_view: OperationView,
        family: EndpointFamily | None,
        single: SingleRequest,
        item: bool = False,
        suggest_names: bool = True,
    ) -> None:
        """Resolve a single request. Raises AqlError.

        Args:
            item: True if the request is an item of a batch.
            suggest_names: True to suggest similar names for an unknown operation.
        """
        operation_catalog = self.operation_catalog()
        name = single.operation
        operation = operation_catalog.find_in(name, operation_view)
        if operation is None:
            if not suggest_names:
                raise errors.unknown_operation(name, ())
            raise self._unknown_operation_error(call, operation_catalog, name, operation_view)
        # Computing the endpoint costs more than comparing it with the endpoint of the last call.
        if family is not None and self._last_families.get(operation) is not family:
            home_family = operation_view.find_family(operation.name, operation.category)
            if home_family is not family:
                raise errors.wrong_endpoint(operation.name, home_family, call.name)
            self._last_families[operation] = family
        request = AqlRequest(operation, operation_view, family, item=item)
        call_mode = translation.translate(call, request, single)
        formats = self._formats.get(operation)
        if formats is None:
            formats = self._formats[operation] = _text_formats(operation)
        if formats:
            _check_formats(formats, call.arguments)
        endpoint, call.name = call.name, operation.canonical
        call.operation_request = request
        read_operation = self._find_read_operation(operation)
        if request.confirmation and self.tokens is not None and not read_operation:
            self.tokens.check(call, request)
        if call_mode == "execution" and operation.builtin is not None:
            _reject_background_run(operation.builtin)
        if read_operation and call_mode != "preview":
            self._wrap_call(call, request, MERGE, reads=read_operation)
        if call_mode != "call":
            self._wrap_call(
                call, call.operation_request, PREVIEW if call_mode == "preview" else START
            )
        elif not self._has_read_modify_write and not formats and not item:
            tool = self._names.get(operation.canonical)
            if tool is not None:
                self._fast_path.add(call, endpoint, request, name, tool)
        quotas = self.quotas
        if quotas is not None and quotas.active and call.operation_request is request:
            quotas.admit(call, request, translation.read_quota_token(single.meta))

    def _find_read_operation(self, operation: Operation) -> str:
        """Return the name of the operation that reads before this one writes.

        Empty: there is none.
        """
        if not self._has_read_modify_write:
            return ""
        return self._catalog_builder.settings(operation.canonical).read_modify_write or ""

    def prepare_retry(self, call: Call) -> None:
        """Prepare a retried call: read first, where the operation is configured to do so."""
        request = cast("AqlRequest", call.operation_request)
        read_operation = self._find_read_operation(request.operation)
        if read_operation:
            self._wrap_call(call, request, MERGE, reads=read_operation)

    def _resolve_batch(
        self,
        call: Call,
        operation_view: OperationView,
        family: EndpointFamily | None,
        batch_request: BatchRequest,
    ) -> None:
        hidden = self._builtin_upstream.hidden[BATCH]
        params: dict[str, Any] = {"items": batch_request.items, "endpoint": call.name}
        request = AqlRequest(hidden, operation_view, family, params=params)
        call_mode = translation.apply_batch_options(call, request, batch_request.meta)
        params["dry_run"] = call_mode == "preview"
        call.name, call.arguments, call.operation_request = hidden.canonical, EMPTY_OBJECT, request
        if call_mode == "execution":
            self._wrap_call(call, request, START)

    def _resolve_child(
        self, call: Call, operation_view: OperationView, child_request: ChildRequest
    ) -> None:
        """Resolve a child call, such as an item of a batch. Raises AqlError."""
        if child_request.error is not None:
            raise child_request.error
        assert child_request.single is not None
        self._resolve_single(
            call,
            operation_view,
            child_request.family,
            child_request.single,
            child_request.item,
            child_request.suggest_names,
        )

    def _wrap_call(self, call: Call, request: AqlRequest, name: str, **params: Any) -> None:
        """Replace the call by a call of a hidden operation, which makes or previews the original
        call.
        """
        hidden = self._builtin_upstream.hidden.get(name)
        if hidden is None:
            raise errors.unknown_operation(name, ())
        child = create_child_call(call, call.name, call.arguments, request, sends_progress=True)
        wrapper_request = AqlRequest(
            hidden, request.operation_view, request.family, params={"child": child, **params}
        )
        wrapper_request.item, request.item = request.item, False
        wrapper_request.request_id = request.request_id
        call.name, call.arguments, call.operation_request = (
            hidden.canonical,
            EMPTY_OBJECT,
            wrapper_request,
        )

    def _unknown_operation_error(
        self,
        call: Call,
        operation_catalog: OperationSnapshot,
        name: str,
        operation_view: OperationView,
    ) -> AqlError:
        if self._authorizer.view_of(call) is None:
            # Only a caller that sees every tool may learn about servers that are still starting.
            for segment, state in self.get_absent_servers().items():
                name_prefix = f"{operations.to_snake_case(segment)}_"
                if operation_view.namespace == segment or (
                    not operation_view.namespace and name.startswith(name_prefix)
                ):
                    return errors.server_not_connected(name, segment, state)
        return errors.unknown_operation(
            name, self._find_similar_names(call, operation_catalog, name, operation_view)
        )

    def _find_similar_names(
        self,
        call: Call,
        operation_catalog: OperationSnapshot,
        name: str,
        operation_view: OperationView,
    ) -> list[str]:
        """Return similar names of operations that the caller can see."""
        view = self._authorizer.view_of(call)
        similar_names: list[str] = []
        for similar_name in operation_catalog.find_similar(name, 20):
            operation = operation_catalog.find(similar_name)
            if operation is None:
                continue
            if operation.builtin is None:
                if view is not None and not view.includes(operation.tool):
                    continue
                if not operation_catalog.is_within(operation, operation_view.namespace):
                    continue
                is_irreversible = operation.tool.effect.level is EffectLevel.IRREVERSIBLE
            else:
                is_irreversible = operation.category is Category.DELETE
            if is_irreversible and not similar_names:
                # The nearest operation is irreversible, and a model would call it. Other names
                # would mislead, so suggest none.
                return []
            if is_irreversible:
                continue
            similar_names.append(operation_catalog.name_in(operation, operation_view))
        return similar_names[:5]


def _no_endpoint_error(name: str, operation_view: OperationView) -> InterlockError:
    endpoints = ", ".join(operation_view.tools)
    return InterlockError(
        UNKNOWN_TOOL,
        f"Unknown tool {name[:100]!r}. This view has operations instead of tools: call "
        f"{endpoints} with `operation` and `params`.",
        {"tool": name[:100], "endpoints": list(operation_view.tools)},
    )


def _reject_background_run(builtin: BuiltinOperation) -> None:
    """Reject an operation that cannot run as an execution. Raises AqlError.

    Operations that respond at once need no execution. Operations with secret parameters must not
    become one: an execution stores its parameters.
    """
    if (
        builtin.free
        or builtin.lifecycle
        or any(parameter.sensitive for parameter in builtin.parameters)
    ):
        raise AqlError(
            "VALIDATION_INVALID_VALUE",
            f"Operation '{builtin.name}' cannot run in the background. Call it without '_async'.",
            {"param_name": "_async", "operation": builtin.name},
        )


def _text_formats(operation: Operation) -> tuple[tuple[str, str, str], ...]:
    """Return the parameters whose text must have a format that their schema does not check."""
    formats = []
    for parameter in operation.signature.parameters:
        form = value_formats.format_of(parameter.schema)
        if form:
            formats.append(
                (
                    parameter.upstream_name,
                    f"input.{parameter.name}" if parameter.in_input else parameter.name,
                    form,
                )
            )
    return tuple(formats)


def _check_formats(formats: tuple[tuple[str, str, str], ...], arguments: bytes | Raw) -> None:
    arguments_by_name = decode_value(arguments)
    for upstream_name, name, form in formats:
        if upstream_name in arguments_by_name:
            value_formats.check(name, form, arguments_by_name[upstream_name])
