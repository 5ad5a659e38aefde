"""One rule, compiled, and the two things it is held against: who asks, and what is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from interlock.call import Caller
from interlock.config.conditions import CannotJudge, Condition, compile_condition
from interlock.config.trust import RuleConfig
from interlock.pipeline.policy.decision import ACTIONS, Action, Decision, decision
from interlock.pipeline.policy.globs import Globs
from interlock.protocol.kinds import KindPattern, compiled

NO_ANNOTATIONS: Mapping[str, Any] = {}
_ABSENT: Any = object()


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What is asked for, as rules see it."""

    kinds: tuple[tuple[str, ...], ...]
    """The kind of the request, once for each name under which it may be known. Each with the other
    spellings of that name: who allows one must mean all of them."""
    tool: str = ""
    """The canonical name. Empty: it is no call of a tool."""
    effect: str = ""
    server: str = ""
    annotations: Mapping[str, Any] = NO_ANNOTATIONS
    """Members of the tool's annotations and of its capability."""


class Rule:
    """A rule of the config. What it leaves out fits everybody and everything."""

    __slots__ = (
        "action",
        "annotations",
        "callers",
        "condition",
        "decision",
        "effects",
        "kinds",
        "name",
        "number",
        "restricts",
        "roles",
        "scopes",
        "tools",
    )

    def __init__(self, config: RuleConfig, number: int) -> None:
        """Raises BadValue or ProtocolError for what `config` itself would have refused."""
        self.number = number
        self.name = config.name
        self.action: Action = ACTIONS[config.then]
        self.restricts = self.action is not Action.ALLOW
        named = bool(config.tools) and all(_names_something(glob) for glob in config.tools)
        self.decision: Decision = decision(
            self.action, config.name, config.reason, names_tool=named
        )
        self.callers = Globs(config.callers) if config.callers else None
        self.roles = frozenset(config.roles) if config.roles else None
        self.scopes = frozenset(config.scopes) if config.scopes else None
        self.tools = Globs(config.tools) if config.tools else None
        self.effects = frozenset(config.effects) if config.effects else None
        self.annotations = tuple(config.annotations.items())
        self.kinds: tuple[KindPattern, ...] = tuple(compiled(text) for text in config.kinds)
        self.condition: Condition | None = (
            None if config.when is None else compile_condition(config.when)
        )

    @property
    def about_who(self) -> bool:
        return bool(self.callers or self.roles or self.scopes)

    # -- who

    def fits_caller(self, caller: Caller) -> bool:
        if self.callers is not None and not self.names(caller):
            return False
        if self.roles is not None and self.roles.isdisjoint(caller.roles):
            return False
        return self.scopes is None or not self.scopes.isdisjoint(caller.scopes or ())

    def names(self, caller: Caller) -> bool:
        """Whether its globs name the caller.

        Of a call from above, who called there is our parent's word. It is taken where it holds
        somebody back, not where it lets somebody through.
        """
        assert self.callers is not None
        return self.callers.fit(caller.name) or (
            self.restricts and bool(caller.above) and self.callers.fit(caller.above)
        )

    # -- what

    def fits(self, asked: Asked) -> bool:
        if self.tools is not None and not (asked.tool and self.tools.fit(asked.tool)):
            return False
        if self.effects is not None and asked.effect not in self.effects:
            return False
        if not (self.fits_kind(asked) if self.kinds else asked.tool):
            return False
        return not self.annotations or self.fits_annotations(asked)

    def fits_kind(self, asked: Asked) -> bool:
        if not self.kinds:
            # A rule that does not say what it is about is about calls of tools.
            return bool(asked.tool)
        if self.restricts:
            return any(self._grants(kind) for kinds in asked.kinds for kind in kinds)
        return any(all(self._grants(kind) for kind in kinds) for kinds in asked.kinds)

    def _grants(self, kind: str) -> bool:
        return any(pattern.grants(kind) for pattern in self.kinds)

    def fits_annotations(self, asked: Asked) -> bool:
        if not self.annotations:
            return True
        return bool(asked.tool) and all(
            same(asked.annotations.get(member, _ABSENT), value)
            for member, value in self.annotations
        )

    # -- when

    def holds(self, about: Mapping[str, Any] | None) -> bool:
        """Whether its condition is true of the call, or must be taken to be: what cannot be judged
        (`about` None, too) holds back and lets nothing through."""
        if self.condition is None:
            return True
        if about is None:
            return self.restricts
        try:
            return self.condition.holds(about)
        except CannotJudge:
            return self.restricts


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same. `true` is not 1."""
    return (isinstance(one, bool) is isinstance(other, bool)) and bool(one == other)


def _names_something(glob: str) -> bool:
    """Whether a glob of tools says more than all of them, or all of a server: letters of a name."""
    return any(letter.isalnum() for letter in glob.rpartition(".")[2])
