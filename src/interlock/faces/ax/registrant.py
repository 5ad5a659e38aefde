"""Keeps this node registered with a parent: dials, registers, says that it is alive, and when the
parent is lost finds the next one.

Parents are tried in the order of the config, all of them before the first pause. Whoever has it
keeps it: a better parent that comes back is taken only once the present one is lost. All time is
given: the clocks, the sleeping, the dice.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from msgspec import UNSET, Raw
from msgspec.structs import replace

from interlock.channels.channel import Channel
from interlock.channels.dial import dial as dial_channel
from interlock.config import ParentConfig
from interlock.errors import (
    UNKNOWN_SESSION,
    UPSTREAM_LOST,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
)
from interlock.faces.ax.asking import Conversing
from interlock.faces.ax.below import about_subtree, only_news
from interlock.faces.ax.dialling import Dial, reach
from interlock.faces.ax.introduction import Parent, introduction, read_parent
from interlock.faces.ax.proof import mint_proof
from interlock.faces.ax.refusal import RefusedError, refusal_by_symbol
from interlock.faces.ax.rounds import SETTLED, Rounds, SilentError, for_good
from interlock.faces.ax.standing import Event, ParentStatus, State, move
from interlock.faces.ax.telling import Telling
from interlock.ports import Clock
from interlock.protocol import ax, jsonrpc, mcp
from interlock.protocol.scopes import ADMIN

PATIENCE: Final = 10.0
"""How long a parent may take to be dialled, and to answer each of the first two requests. It asks
back before it answers the second."""
FAREWELL: Final = 2.0
"""How long leaving may take."""
BEAT_AFTER: Final = 0.7
"""The part of an interval after which the next heartbeat is sent: it must be there before the
interval ends."""
_UNSURE: Final = 30.0
"""When no heartbeats were agreed on: how long an answer may take."""
_EVERYTHING: Final = ax.Offers(tools=True, resources=True, notifications=True)

_log = logging.getLogger("interlock.faces.ax")
T = TypeVar("T")


class Registrant:
    """One subserver, as it stands with its parents."""

    def __init__(
        self,
        *,
        parent: ParentConfig,
        subserver_id: str,
        role: str,
        converse: Callable[[Channel, Registrant], Conversing],
        subtree_ids: Callable[[], tuple[str, ...] | None] = lambda: None,
        on_registered: Callable[[ax.Registered], None] = lambda _: None,
        on_lost: Callable[[str], None] = lambda _: None,
        on_state: Callable[[Registrant], None] = lambda _: None,
        on_refused: Callable[[InterlockError], None] = lambda _: None,
        offers: ax.Offers = _EVERYTHING,
        transport_class: str = ax.NATIVE,
        auth_scope: str | None = ADMIN,
        once: bool = False,
        stubborn: bool = True,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Clock = random.random,
        dial: Dial = dial_channel,
    ) -> None:
        """`parent` has no references any more: `config.resolve_parent` has seen it.

        `role` is `leaf` or `aggregator`; a leaf's `subtree_ids` gives None. `converse` makes the
        conversation on a channel. `on_registered` is told again when the parent's tree or budget is
        another than before; `on_lost` once for each registration that ends. `on_refused`: the
        parent refuses who is below (`data` may say whose `aggregator_id`); it may be asked again
        when they are gone. `auth_scope`: the most it wants to be asked for.
        `once`: when the parent is lost or does not want it, that is the end.
        `stubborn`: try again also when all parents refuse for a reason that will hardly change.
        """
        self._settings = parent
        self._subserver_id = subserver_id
        self._role = role
        self._converse = converse
        self._subtree_ids = subtree_ids
        self._on_registered = on_registered
        self._on_lost = on_lost
        self._on_refused = on_refused
        self.on_state = on_state
        """Told whenever it has come to another state."""
        self._offers = offers
        self._transport_class = transport_class
        self._auth_scope = auth_scope
        self._once = once
        self.stubborn = stubborn
        self.refused = False
        """Whether the last try was refused for a reason that will hardly change."""
        self._telling = Telling()
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._jitter = jitter
        self._dial = dial
        self._interval = round(parent.heartbeat * 1000)
        self._state = State.IDLE
        self._since = wall_clock()
        self._url = parent.url
        self._problem: InterlockError | None = None
        self.granted: ax.Registered | None = None
        """What the parent granted. The same object until something of it is another. An attribute,
        as every call from a parent is held against it."""
        self._announced: tuple[str, ...] | None = None
        """The subtree that the parent knows of."""
        self._beats = 0
        self._granted_at = 0.0
        self._gone: InterlockError | None = None
        """Why the channel is closed."""
        self._channel: Channel | None = None
        self._conversation: Conversing | None = None
        self._woken = asyncio.Event()
        """Something happened that cannot wait for the next heartbeat."""
        self._task: asyncio.Task[None] | None = None

    # -- life

    def begin(self) -> None:
        """Begin to look for a parent."""
        if self._state is State.IDLE:
            self._move(Event.BEGIN)
            self._task = asyncio.get_running_loop().create_task(self._run(), name="registrant")

    async def end(self) -> None:
        """Say goodbye, if there is somebody to say it to, and stop. Takes at most two seconds."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._state is State.REGISTERED and self._conversation is not None:
            self._move(Event.LEAVE)
            granted, self.granted = self.granted, None
            session = "" if granted is None else granted.session_id
            params = jsonrpc.encode_value(ax.Farewell(session, "it stops"))
            try:
                await self._within(FAREWELL, self._conversation.request(ax.DEREGISTER, params))
            except InterlockError as error:
                _log.info("the parent did not take the farewell: %s", error)
        channel = self._channel
        self._hang_up()
        if channel is not None:
            try:
                await self._within(FAREWELL, asyncio.ensure_future(channel.wait_closed()))
            except InterlockError:
                _log.info("the channel to the parent did not close in time")
        if self._state is not State.ENDED:
            self._move(Event.END)

    async def until_over(self) -> None:
        """Wait until it has ended by itself, as one does that tries only once."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def changed(self) -> None:
        """Somebody joined or left below: the parent is told at once."""
        self._woken.set()

    def keys_changed(self, jwks: Raw) -> None:
        """The parent signs its tokens with other keys from now on."""
        if self.granted is not None:
            self.granted = replace(self.granted, jwks=jwks)

    def tell(self, method: str, params: bytes | Raw | None) -> None:
        """Send the parent a notification that is about none of its requests. Lost without one."""
        if self.granted is not None and self._conversation is not None:
            self._conversation.announce(method, params)

    # -- how it stands

    @property
    def state(self) -> State:
        return self._state

    @property
    def problem(self) -> InterlockError | None:
        """What went wrong last. None once it is registered."""
        return self._problem

    @property
    def url(self) -> str:
        return self._url

    @property
    def assigned_segment(self) -> str | None:
        """What this node is called by its parent. None: it has none now."""
        return None if self.granted is None else self.granted.assigned_segment

    @property
    def parent_id(self) -> str | None:
        return None if self.granted is None else self.granted.aggregator_id or None

    @property
    def tree_id(self) -> str | None:
        return None if self.granted is None else self.granted.tree_id or None

    def identity(self) -> ax.Identity:
        """Who this is, and with whom it is registered."""
        return ax.Identity(self._subserver_id, self.parent_id, self._role, self.tree_id)

    def status(self) -> ParentStatus:
        granted, problem = self.granted, self._problem
        symbol = ""
        if problem is not None:
            symbol = problem.symbol if isinstance(problem, RefusedError) else problem.failure.name
        return ParentStatus(
            url=self._url,
            state=self._state.value,
            since=self._since,
            problem=None if problem is None else problem.message,
            symbol=symbol,
            segment=self._settings.segment if granted is None else granted.assigned_segment,
            session_id="" if granted is None else granted.session_id,
            parent_id=self.parent_id or "",
            tree_id=self.tree_id or "",
            beats=self._beats,
        )

    def _move(self, event: Event) -> None:
        self._state = move(self._state, event)
        self._since = self._wall_clock()
        self.on_state(self)

    # -- rounds

    async def _run(self) -> None:
        settings = self._settings
        rounds = Rounds(
            (settings.url, *settings.backup), heartbeat=settings.heartbeat, jitter=self._jitter
        )
        while True:
            self._url = rounds.url
            failed, lasted = await self._try(self._url)
            wait = rounds.after(failed, lasted=lasted, refused=self.refused)
            if self._once or (rounds.hopeless and not self.stubborn):
                self._move(Event.GIVEN_UP)
                return
            if wait:
                await self._sleep(wait)
            self._move(Event.NEXT)

    async def _try(self, url: str) -> tuple[InterlockError, float | None]:
        """Be with one parent until that fails: why it did, and how long it was registered. None: it
        never was."""
        self._gone = None
        try:
            failed = await self._serve(url)
        except InterlockError as error:
            failed = error
        except Exception:
            _log.exception("registering failed inside the node")
            failed = InterlockError(
                UPSTREAM_LOST, "Registering failed inside the node; see its log."
            )
        # Why the channel is closed says more than that it is.
        failed = self._gone or failed
        self._hang_up()
        self.granted = None
        self._problem = failed
        registered = self._state is State.REGISTERED
        self.refused = for_good(failed, registered=registered)
        if not registered:
            self._telling.failed(url, failed, refused=self.refused)
            self._move(Event.FAILED)
            return failed, None
        self._telling.lost(url, failed, refused=self.refused)
        self._move(Event.LOST)
        self._on_lost(failed.message)
        return failed, self._clock() - self._granted_at

    # -- with one parent

    async def _serve(self, url: str) -> InterlockError:
        """Register with a parent and stay with it. Why it is over, or raises InterlockError."""
        self._take(await reach(url, self._settings, self._dial))
        self._move(Event.DIALLED)
        parent = await self._introduce()
        self._move(Event.INTRODUCED)
        while True:
            await self._register(parent)
            over = await self._stay()
            if over is not None:
                return over
            _log.info("%s has forgotten this node: it registers again", url)
            self.granted = None
            self._move(Event.FORGOTTEN)
            self._on_lost("The parent has forgotten it.")

    def _take(self, channel: Channel) -> None:
        """Everything that comes on this channel is for the conversation."""
        self._channel = channel
        self._conversation = conversation = self._converse(channel, self)
        channel.on_closed = lambda reason: self._closed(conversation, reason)
        channel.on_message = conversation.take

    def _closed(self, conversation: Conversing, reason: str) -> None:
        if conversation is not self._conversation or self._channel is None:
            return
        said = refusal_by_symbol(self._channel.close_reason)
        lost = InterlockError(UPSTREAM_LOST, f"{self._url} is lost: {reason}.")
        self._gone = conversation.ended_by or said or lost
        self._channel = self._conversation = None
        conversation.closed()
        self._woken.set()

    def _hang_up(self) -> None:
        channel, self._channel = self._channel, None
        conversation, self._conversation = self._conversation, None
        if channel is not None:
            channel.close()
        if conversation is not None:
            conversation.closed()

    async def _ask(self, method: str, params: bytes) -> bytes:
        """The parent's answer. Raises InterlockError."""
        if self._conversation is None:
            raise InterlockError(UPSTREAM_LOST, f"{self._url} is lost.")
        return await self._within(PATIENCE, self._conversation.request(method, params))

    async def _within(self, seconds: float, answer: asyncio.Future[T]) -> T:
        nap: asyncio.Future[Any] = asyncio.ensure_future(self._sleep(seconds))
        waiting: set[asyncio.Future[Any]] = {nap, answer}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise InterlockError(
                    UPSTREAM_UNAVAILABLE, f"{self._url} did not answer within {seconds:g} s."
                )
            return answer.result()
        finally:
            nap.cancel()
            answer.cancel()

    async def _introduce(self) -> Parent:
        """Say who this is, and hear who the parent is."""
        answer = await self._ask(mcp.INITIALIZE, introduction())
        parent = read_parent(answer, self._url)
        if self._conversation is not None:
            self._conversation.announce(mcp.INITIALIZED, None)
        return parent

    async def _register(self, parent: Parent) -> None:
        settings = self._settings
        proof = None
        if settings.authority is not None and settings.authority_key is not None:
            proof = mint_proof(
                settings.authority, settings.authority_key, parent.id, self._wall_clock
            )
        subtree = self._subtree_ids()
        registration = ax.Registration(
            subserver_id=self._subserver_id,
            segment=settings.segment,
            capabilities=self._offers,
            transport_class=self._transport_class,
            heartbeat_interval_ms=self._interval,
            version=parent.version,
            authority=settings.authority,
            authority_proof=proof,
            subtree_ids=subtree,
            auth_scope=self._auth_scope,
        )
        try:
            answer = await self._ask(ax.REGISTER, registration.params())
        except RefusedError as error:
            if about_subtree(error):
                self._on_refused(error)
            raise
        granted = ax.read_registered(answer, settings.segment)
        self._announced = subtree
        self._granted_at = self._clock()
        self._beats = 0
        self._problem = None
        self.granted = replace(
            granted,
            aggregator_id=granted.aggregator_id or parent.id,
            tree_id=granted.tree_id or parent.tree_id,
        )
        self._move(Event.GRANTED)
        self._telling.registered(granted.assigned_segment, self._url)
        self._on_registered(self.granted)

    # -- registered

    async def _stay(self) -> InterlockError | None:
        """Beat until the parent is lost: why. None: it has forgotten the session."""
        assert self.granted is not None
        every = self._interval / 1000
        limit = (self.granted.heartbeat_deadline_ms / 1000) or ax.MISSES * every or _UNSURE
        due = self._clock() + every * BEAT_AFTER if every else math.inf
        beats: dict[asyncio.Future[bytes], float] = {}
        try:
            while True:
                self._woken.clear()
                if self._gone is not None or self._conversation is None:
                    return self._gone or InterlockError(UPSTREAM_LOST, f"{self._url} is lost.")
                for beat in [one for one in beats if one.done()]:
                    if self._forgotten(beat):
                        return None
                    # It is alive: whatever it owes for earlier ones is of no interest.
                    for earlier in list(beats):
                        del beats[earlier]
                        earlier.cancel()
                        if earlier is beat:
                            break
                now = self._clock()
                oldest = min(beats.values(), default=math.inf)
                if now >= oldest + limit:
                    return SilentError(f"{self._url} is lost: it is silent for {limit:g} s.")
                if now >= due or self._subtree_ids() != self._announced:
                    beat = self._beat(self._conversation)
                    beats[beat] = now
                    beat.add_done_callback(lambda _: self._woken.set())
                    due = now + every * BEAT_AFTER if every else math.inf
                await self._rest(min(due, min(beats.values(), default=math.inf) + limit) - now)
        finally:
            for beat in beats:
                beat.cancel()

    def _beat(self, conversation: Conversing) -> asyncio.Future[bytes]:
        assert self.granted is not None
        subtree = self._subtree_ids()
        news = None if subtree == self._announced else subtree
        self._announced = subtree
        beat = ax.Beat(self.granted.session_id, news)
        answer = conversation.request(ax.HEARTBEAT, beat.params())
        answer.add_done_callback(self._heard)
        return answer

    def _heard(self, beat: asyncio.Future[bytes]) -> None:
        """At once: the parent may hang up with the same breath."""
        error = None if beat.cancelled() else beat.exception()
        if isinstance(error, RefusedError) and about_subtree(error):
            self._on_refused(error)

    def _forgotten(self, beat: asyncio.Future[bytes]) -> bool:
        """Take the answer to a heartbeat. True: there is no such session. Raises InterlockError."""
        try:
            answer = ax.read_beaten(beat.result())
        except InterlockError as error:
            if error.failure is UNKNOWN_SESSION:
                return True
            if isinstance(error, RefusedError) and only_news(error):
                # What it knew before still holds.
                return False
            raise
        self._beats += 1
        if self._clock() - self._granted_at >= SETTLED:
            self._telling.stayed()
        granted = self.granted
        if granted is not None:
            news = replace(
                granted,
                tree_id=answer.tree_id or granted.tree_id,
                budget=answer.budget or granted.budget,
                jwks=granted.jwks if answer.jwks is UNSET else answer.jwks,
            )
            if news != granted:
                self.granted = news
                self._on_registered(news)
        return False

    async def _rest(self, seconds: float) -> None:
        """Until the time has come, or something has happened."""
        woken = asyncio.ensure_future(self._woken.wait())
        waiting: set[asyncio.Future[Any]] = {woken}
        if math.isfinite(seconds):
            waiting.add(asyncio.ensure_future(self._sleep(max(0.0, seconds))))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
