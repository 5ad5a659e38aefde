"""The pipeline: the fixed order in which every call is treated, on one screen.

    audit( authenticate → resolve → validate → [policy → budget → approval] → deadline → breaker
           → dispatch )

The stages in brackets have their place here and no code yet. Listing goes through the same
authentication and audit as calling: there is no side door.
"""

from __future__ import annotations

import asyncio
import logging

from interlock.call import Call, Caller, Outcome, UpstreamGoneError
from interlock.catalog.catalog import Catalog
from interlock.catalog.names import style_for
from interlock.errors import (
    CANCELLED,
    INTERNAL,
    METHOD_NOT_FOUND,
    UNKNOWN_SESSION,
    InterlockError,
)
from interlock.pipeline.audit import OK, Audit, outcome_word
from interlock.pipeline.authenticate import Authenticator
from interlock.pipeline.breaker import Breakers
from interlock.pipeline.deadline import set_deadline
from interlock.pipeline.dispatch import ABANDONED, Dispatcher
from interlock.pipeline.resolve import resolve
from interlock.pipeline.validate import validate
from interlock.ports import Clock
from interlock.protocol.mcp import TOOLS_CALL, TOOLS_LIST

_log = logging.getLogger("interlock.pipeline")


class Pipeline:
    """Takes calls from faces, gives back outcomes. Raises InterlockError, and nothing else."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        authenticate: Authenticator,
        breakers: Breakers,
        dispatcher: Dispatcher,
        audit: Audit,
        clock: Clock,
        names: str,
        timeout: float,
    ) -> None:
        self._catalog = catalog
        self._authenticate = authenticate
        self._breakers = breakers
        self._dispatcher = dispatcher
        self._audit = audit
        self._clock = clock
        self.names = names
        self.timeout = timeout
        self.transparent: str | None = None
        """The one upstream that stands open to everything, when there is one."""

    async def run(self, call: Call) -> Outcome:
        """Treat one call, from the first check to the journal."""
        started = self._clock()
        # Until something else is known: whatever ends a call from outside counts as cancelled.
        word, detail = CANCELLED.name, ""
        try:
            self._enter(call)
            verb = call.verb
            if verb == TOOLS_CALL:
                tool = resolve(call, self._catalog.current)
                validate(call, tool)
                # policy, budget and approval: here, in this order
                outcome = await self._send(call, tool.upstream, tool.repeatable)
                word = outcome_word(outcome)
            elif verb == TOOLS_LIST:
                outcome = self._list_tools(call)
                word = OK
            else:
                outcome = await self._pass_on(call)
                word = OK
            return outcome
        except InterlockError as error:
            word, detail = error.failure.name, error.message
            raise
        except Exception as bug:
            word, detail = INTERNAL.name, type(bug).__name__
            _log.exception("a call failed inside the node (%.100r %.100r)", call.verb, call.name)
            raise InterlockError(
                INTERNAL, "The node failed on this call; its log says where."
            ) from bug
        finally:
            self._audit.record(call, word, int((self._clock() - started) * 1e6), detail)

    def admit(self, call: Call) -> Caller:
        """The caller of a request that is answered by its face alone, such as `initialize`."""
        word, detail = INTERNAL.name, ""
        try:
            caller = self._enter(call)
            word = OK
            return caller
        except InterlockError as error:
            word, detail = error.failure.name, error.message
            raise
        finally:
            self._audit.record(call, word, 0, detail)

    def configure(self, *, authenticate: Authenticator, names: str, timeout: float) -> None:
        """Apply node settings that may change while it runs."""
        self._authenticate = authenticate
        self.names = names
        self.timeout = timeout

    def _enter(self, call: Call) -> Caller:
        caller = call.caller = self._authenticate(call.credentials)
        if call.owner and call.owner != caller.name:
            raise InterlockError(UNKNOWN_SESSION, "This session belongs to somebody else.")
        return caller

    def _list_tools(self, call: Call) -> Outcome:
        client = call.client
        style = style_for(client.name, self.names)
        page = self._catalog.current.tools_page(client.era, style, call.cursor)
        return Outcome(page, client.era)

    async def _pass_on(self, call: Call) -> Outcome:
        """What is not about tools goes, as it is, to the one upstream that is shown as itself."""
        if self.transparent is None:
            raise InterlockError(METHOD_NOT_FOUND, f"{call.verb} is not served here.")
        call.upstream = self.transparent
        return await self._send(call, self.transparent, False)

    async def _send(self, call: Call, key: str, repeatable: bool) -> Outcome:
        dispatcher = self._dispatcher
        upstream = dispatcher.upstream(key)
        set_deadline(call, self._clock(), upstream.timeout or self.timeout)
        self._breakers.admit(key)
        try:
            try:
                exchange, slot = dispatcher.start(call, upstream)
                try:
                    outcome = await exchange
                except (asyncio.CancelledError, GeneratorExit):
                    exchange.abandon(ABANDONED)
                    raise
                finally:
                    dispatcher.over(exchange, slot)
            except UpstreamGoneError as gone:
                outcome = await dispatcher.again(call, upstream, gone, repeatable)
        except InterlockError as error:
            self._breakers.failed(key, error.failure)
            raise
        self._breakers.succeeded(key)
        return outcome
