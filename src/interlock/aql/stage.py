"""The AQL stage of the pipeline: after authentication, before the resolution of the tool.

An operation becomes a call of its tool here, and goes on as any other does. Everything that decides
whether it may is behind this: an endpoint is no way around anything.
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
from interlock.aql.language import errors, request
from interlock.aql.language.errors import AqlError
from interlock.aql.language.request import BatchRequest, SingleRequest
from interlock.aql.operations import (
    BuiltinOperation,
    Operation,
    OperationCatalogBuilder,
    OperationSnapshot,
)
from interlock.aql.request import AqlRequest, ChildRequest, child_of
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
"""What the stage calls by itself: tools of the node's own, in no operation catalog."""

ANSWERED: Final = None
"""The call is answered, or will be."""
CHECKED: Final = True
"""It is a call of a tool, knows its route, and has arguments that fit the tool's schema."""
GOES_ON: Final = False
"""It is a call of a tool, or always was something else: it goes on as any other."""


UsageEvent = tuple[str, str, bool]
"""The canonical name of a tool, who called it, and whether that went well."""


class CallCounter(Protocol):
    """Counts the calls of callers against quotas and limits."""

    active: bool
    """Whether there is anything to count."""

    def admit(self, call: Call, asked: AqlRequest, continued: str = "") -> object:
        """Count a call that is about to be made. It may become another one, which waits for a
        human. Raises AqlError; may add warnings."""

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """A call is over, whether it was counted or not."""


class TokenVerifier(Protocol):
    """Checks confirmation tokens."""

    def check(self, call: Call, asked: AqlRequest) -> None:
        """Raises AqlError."""


class ToolListBuilder(Protocol):
    """Builds the `tools/list` of a face."""

    def tools(
        self, face: OperationView, operation_catalog: OperationSnapshot, view: View | None, era: Era
    ) -> bytes: ...


class ViewAuthorizer(Protocol):
    """Decides who sees which tools, and who may make other requests."""

    @property
    def view_of(self) -> Callable[[Call], View | None]: ...

    def authorize_method(self, call: Call) -> None:
        """Raises InterlockError."""


class AqlStage:
    """Resolves AQL requests to calls of tools, and writes their responses."""

    def __init__(
        self,
        config: AqlConfig,
        *,
        host: CallHost,
        catalog_builder: OperationCatalogBuilder,
        catalog: Catalog,
        own: BuiltinUpstream,
        authorizer: ViewAuthorizer,
        listing: ToolListBuilder,
        response_writer: Callable[[Call, Outcome | None, InterlockError | None], CallResult],
        choose: Callable[[int, int, OperationView], OperationView] = lambda _, __, face: face,
        tokens: TokenVerifier | None = None,
        quotas: CallCounter | None = None,
        absent: Callable[[], Mapping[str, str]] = dict,
        used: Callable[[UsageEvent], None] | None = None,
    ) -> None:
        """
        Args:
            response_writer: Writes the response of a call.
            choose: The face that `auto` shows, or PLAIN, by how many tokens plain tools have and
                how many are too many.
            absent: The segments of configured servers that have offered nothing so far, and their
                state.
            used: Takes which tool was called, by whom, and whether that succeeded. It must be fast.
        """
        self._host = host
        self._catalog_builder = catalog_builder
        self._catalog = catalog
        self._own = own
        self._authorizer = authorizer
        self._listing = listing
        self._write_response = response_writer
        self._choose = choose
        self.quotas = quotas
        self.tokens = tokens
        self.used = used
        self.absent = absent
        self._snapshot: Snapshot | None = None
        self._operation_catalog: OperationSnapshot | None = None
        self._homes: dict[Operation, EndpointFamily] = {}
        self._formats: dict[Operation, tuple[tuple[str, str, str], ...]] = {}
        self._sizes: dict[Any, int] = {}
        self._fast_path = FastPath()
        self._names: Mapping[str, Tool] = {}
        """The names of the catalog when the operation catalog was built: other names, another
        one."""
        self.configure(config)

    def configure(self, config: AqlConfig) -> None:
        """Apply settings, which may change while it runs."""
        self._limits = config.limits
        self._auto_tokens = config.auto_tokens
        self._structured = config.structured_content
        self._slow = config.slow_ms / 1000
        self._all_alike = not config.operations
        """Whether the config says nothing of single operations."""
        self._rewrites = any(one.read_modify_write for one in config.operations.values())
        self._snapshot = None
        self._fast_path.forget()

    @property
    def in_use(self) -> bool:
        """Whether anybody ever wanted operations here. A node of tools alone makes none: for
        thousands of tools they, and what finds them, take more room than all the rest."""
        return self._operation_catalog is not None

    def operation_catalog(self) -> OperationSnapshot:
        """The operations of now."""
        snapshot = self._catalog.current
        operation_catalog = self._operation_catalog
        if operation_catalog is None or snapshot is not self._snapshot:
            operation_catalog = self._operation_catalog = self._catalog_builder.at(snapshot)
            self._snapshot = snapshot
            self._names = self._catalog.by_name
            self._fast_path.forget()
            self._homes.clear()
            self._formats.clear()
            self._sizes.clear()
        return operation_catalog

    def find(self, name: str, face: OperationView) -> Operation | None:
        """What a name means in a face."""
        return self.operation_catalog().find_in(name, face)

    # -- a request comes

    def resolve_operation(self, call: Call) -> OperationMatch:
        asked = call.operation_request
        face = call.view
        quotas = self.quotas
        assert face is not None
        if asked is not None:
            if type(asked) is ChildRequest:
                self._take_child(call, face, asked)
            elif quotas is not None and quotas.active:
                quotas.admit(call, cast("AqlRequest", asked))
            return GOES_ON
        if call.method == TOOLS_CALL:
            if (
                self._catalog.by_name is self._names
                and (quotas is None or not quotas.active)
                and self._fast_path.take(call, face)
            ):
                return CHECKED
            tools = face.tools
            name = call.name
            if name not in tools:
                if face.mode != "auto":
                    raise _no_endpoint(name, face)
                # A plain tool, told plainly; what holds in a view holds for it.
                return GOES_ON
            # An endpoint has no headers of its own that could say what its arguments say.
            call.header_params = None
            found = request.read(call.arguments, self._limits)
            family = tools[name]
            if type(found) is SingleRequest:
                self._make(call, face, family, found)
            else:
                assert isinstance(found, BatchRequest)
                self._make_batch(call, face, family, found)
            return GOES_ON
        if call.method == TOOLS_LIST and self._list(call, face):
            return ANSWERED
        return GOES_ON

    def write_response(
        self,
        call: Call,
        outcome: Outcome | None,
        error: InterlockError | None,
        duration: float = 0.0,
    ) -> CallResult:
        used, quotas = self.used, self.quotas
        route, caller = call.route, call.caller
        name = "" if caller is None else caller.name
        if (
            outcome is None
            or error is not None
            or (glance := outcome.summary) is None
            or glance.is_error
        ):
            if used is not None and route is not None:
                used((route.canonical, name, False))
            return self._settled(call, outcome, error)
        if used is not None and route is not None:
            used((route.canonical, name, True))
        if quotas is not None and quotas.active:
            return self._settled(call, outcome, error)
        if self._all_alike and duration < self._slow and not call.approval_id:
            ordinary = fast_path.told(call, outcome, glance, self._structured)
            if ordinary is not None:
                return ordinary, None
        return self._write_response(call, outcome, error)

    def _settled(
        self, call: Call, outcome: Outcome | None, error: InterlockError | None
    ) -> CallResult:
        """Tell it after whoever counts has heard of it."""
        if self.quotas is not None:
            try:
                self.quotas.on_result(call, outcome, error)
            except Exception as bug:
                return self._write_response(call, None, internal_error(call, bug))
        return self._write_response(call, outcome, error)

    def _list(self, call: Call, face: OperationView) -> bool:
        self._authorizer.authorize_method(call)
        view = self._authorizer.view_of(call)
        era = call.client.era
        if face.mode == "auto":
            face = self._choose(self._plain_tokens(view), self._auto_tokens, face)
            if face is PLAIN_VIEW:
                return False
        if call.cursor is not None:
            raise InterlockError(
                INVALID_CURSOR, "This list has one page: ask for it without a cursor."
            )
        page = self._listing.tools(face, self.operation_catalog(), view, era)
        self._host.finish(call, Outcome(page, era), None)
        return True

    def check_encoding(self, body: bytes) -> tuple[bytes, InterlockError] | None:
        """The id of a call whose bytes are no text, and the error for it. None: no such call."""
        found = request.unreadable(body)
        return None if found is None else (found[0], errors.encoding("arguments", found[1]))

    def shows_tools(self, face: OperationView) -> bool:
        """Whether `auto` lists tools now, to a caller that sees all of them."""
        return self._choose(self._plain_tokens(None), self._auto_tokens, face) is PLAIN_VIEW

    def _plain_tokens(self, view: View | None) -> int:
        """What a model would be shown in the plain view."""
        tools = self.operation_catalog().snapshot.plain_tools
        key = None if view is None else view.key
        size = self._sizes.get(key)
        if size is None:
            size = self._sizes[key] = sum(
                count_tool_tokens(tool) for tool in tools if view is None or view.includes(tool)
            )
        return size

    # -- it becomes a call

    def _make(
        self,
        call: Call,
        face: OperationView,
        family: EndpointFamily | None,
        single: SingleRequest,
        item: bool = False,
        near: bool = True,
    ) -> None:
        """`near`: whether to look for what was meant by a name that is not there. Raises
        AqlError."""
        operation_catalog = self.operation_catalog()
        name = single.operation
        operation = operation_catalog.find_in(name, face)
        if operation is None:
            if not near:
                raise errors.no_operation(name, ())
            raise self._not_there(call, operation_catalog, name, face)
        # It costs more to find out than to remember where it came by last time.
        if family is not None and self._homes.get(operation) is not family:
            home = face.find_family(operation.name, operation.category)
            if home is not family:
                raise errors.wrong_endpoint(operation.name, home, call.name)
            self._homes[operation] = family
        asked = AqlRequest(operation, face, family, item=item)
        way = translation.into(call, asked, single)
        checked = self._formats.get(operation)
        if checked is None:
            checked = self._formats[operation] = _formats_of(operation)
        if checked:
            _check_formats(checked, call.arguments)
        endpoint, call.name = call.name, operation.canonical
        call.operation_request = asked
        reads = self._reads_of(operation)
        if asked.confirmation and self.tokens is not None and not reads:
            self.tokens.check(call, asked)
        if way == "execution" and operation.native is not None:
            _must_go_on_alone(operation.native)
        if reads and way != "preview":
            self._call_instead(call, asked, MERGE, reads=reads)
        if way != "call":
            self._call_instead(call, call.operation_request, PREVIEW if way == "preview" else START)
        elif not self._rewrites and not checked and not item:
            tool = self._names.get(operation.canonical)
            if tool is not None:
                self._fast_path.remember(call, endpoint, asked, name, tool)
        quotas = self.quotas
        if quotas is not None and quotas.active and call.operation_request is asked:
            quotas.admit(call, asked, translation.continued(single.meta))

    def _reads_of(self, operation: Operation) -> str:
        """What reads before this one writes. Empty: it writes at once."""
        if not self._rewrites:
            return ""
        return self._catalog_builder.settings(operation.canonical).read_modify_write or ""

    def again(self, call: Call) -> None:
        """Have a call that is made once more read first, where the operation does."""
        asked = cast("AqlRequest", call.operation_request)
        reads = self._reads_of(asked.operation)
        if reads:
            self._call_instead(call, asked, MERGE, reads=reads)

    def _make_batch(
        self, call: Call, face: OperationView, family: EndpointFamily | None, batch: BatchRequest
    ) -> None:
        hidden = self._own.hidden[BATCH]
        params: dict[str, Any] = {"items": batch.items, "endpoint": call.name}
        asked = AqlRequest(hidden, face, family, params=params)
        way = translation.beside(call, asked, batch.meta)
        params["dry_run"] = way == "preview"
        call.name, call.arguments, call.operation_request = hidden.canonical, EMPTY_OBJECT, asked
        if way == "execution":
            self._call_instead(call, asked, START)

    def _take_child(self, call: Call, face: OperationView, unread: ChildRequest) -> None:
        """A call that is one of several. Raises AqlError."""
        if unread.error is not None:
            raise unread.error
        assert unread.single is not None
        self._make(call, face, unread.family, unread.single, unread.item, unread.alone)

    def _call_instead(self, call: Call, asked: AqlRequest, name: str, **params: Any) -> None:
        """Have an operation of the node's own make the call, or look at it."""
        hidden = self._own.hidden.get(name)
        if hidden is None:
            raise errors.no_operation(name, ())
        child = child_of(call, call.name, call.arguments, asked, follows=True)
        made = AqlRequest(hidden, asked.face, asked.family, params={"child": child, **params})
        made.item, asked.item = asked.item, False
        made.request_id = asked.request_id
        call.name, call.arguments, call.operation_request = hidden.canonical, EMPTY_OBJECT, made

    def _not_there(
        self, call: Call, operation_catalog: OperationSnapshot, name: str, face: OperationView
    ) -> AqlError:
        if self._authorizer.view_of(call) is None:
            # Who sees everything may know what will be there.
            for segment, state in self.absent().items():
                begins = f"{operations.snake(segment)}_"
                if face.namespace == segment or (not face.namespace and name.startswith(begins)):
                    return errors.not_yet(name, segment, state)
        return errors.no_operation(name, self._near(call, operation_catalog, name, face))

    def _near(
        self, call: Call, operation_catalog: OperationSnapshot, name: str, face: OperationView
    ) -> list[str]:
        """Names that were perhaps meant, of those that the caller may know."""
        view = self._authorizer.view_of(call)
        near: list[str] = []
        for one in operation_catalog.near(name, 20):
            operation = operation_catalog.find(one)
            if operation is None:
                continue
            if operation.native is None:
                if view is not None and not view.includes(operation.tool):
                    continue
                if not operation_catalog.within(operation, face.namespace):
                    continue
                held = operation.tool.effect.level is EffectLevel.IRREVERSIBLE
            else:
                held = operation.category is Category.DELETE
            if held and not near:
                # It is the nearest, and a model would call it: another name would mislead.
                return []
            if held:
                continue
            near.append(operation_catalog.name_in(operation, face))
        return near[:5]


def _no_endpoint(name: str, face: OperationView) -> InterlockError:
    endpoints = ", ".join(face.tools)
    return InterlockError(
        UNKNOWN_TOOL,
        f"There is no tool called {name[:100]!r} in this view. Tools are operations here: call "
        f"{endpoints} with `operation` and `params`.",
        {"tool": name[:100], "endpoints": list(face.tools)},
    )


def _must_go_on_alone(native: BuiltinOperation) -> None:
    """Raises AqlError for what is answered at once, and for what nobody may keep: an execution
    writes down what it is called with."""
    if native.free or native.lifecycle or any(one.sensitive for one in native.parameters):
        raise AqlError(
            "VALIDATION_INVALID_VALUE",
            f"Operation '{native.name}' cannot go on by itself. Call it without '_async'.",
            {"param_name": "_async", "operation": native.name},
        )


def _formats_of(operation: Operation) -> tuple[tuple[str, str, str], ...]:
    """The parameters whose text has to have a form that their schema does not check."""
    found = []
    for one in operation.signature.parameters:
        form = value_formats.format_of(one.schema)
        if form:
            found.append((one.own, f"input.{one.name}" if one.inside else one.name, form))
    return tuple(found)


def _check_formats(checked: tuple[tuple[str, str, str], ...], arguments: bytes | Raw) -> None:
    given = decode_value(arguments)
    for own, name, form in checked:
        if own in given:
            value_formats.check(name, form, given[own])
