"""Cases for `interlock policy test`: what is asked for, by whom, and what must come of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta, Struct, field

from interlock.call import Call, Caller, Client, Credentials
from interlock.config import ConfigError
from interlock.config.trust import Action, EffectName
from interlock.errors import InterlockError, ProtocolError
from interlock.pipeline.policy import Policy
from interlock.pipeline.policy.reading import spellings
from interlock.pipeline.policy.rule import Asked
from interlock.protocol.kinds import Kind, read_kind, request_kind
from interlock.protocol.mcp import LATEST_STATELESS, TOOLS_CALL, Era

_HERE = Client(Era.STATELESS, LATEST_STATELESS, "interlock-cli")


class Question(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that a caller asks for."""

    tool: Annotated[str, Meta(min_length=1)] | None = None
    kind: Annotated[str, Meta(min_length=1)] | None = None
    effect: EffectName = "mutating"
    server: str = ""
    annotations: dict[str, Any] = field(default_factory=dict)
    caller: str = "local"
    roles: list[str] = field(default_factory=list)
    scopes: list[str] | None = None
    above: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)

    def put(self) -> tuple[Call, Asked]:
        """As the policy sees it. Raises ProtocolError for a kind that is none."""
        kind = Kind("", TOOLS_CALL, self.tool) if self.tool else read_kind(self.kind or "")
        call = Call(
            kind.method, "cli", Credentials("local"), _HERE,
            name=kind.context, arguments=msgspec.json.encode(self.arguments),
        )  # fmt: skip
        scopes = None if self.scopes is None else tuple(self.scopes)
        call.caller = Caller(self.caller, roles=tuple(self.roles), scopes=scopes, above=self.above)
        is_tool = kind.method == TOOLS_CALL
        call.effect = self.effect if is_tool else ""
        call.upstream = self.server or (kind.context.partition(".")[0] if is_tool else "")
        contexts = spellings(kind.context)
        asked = Asked(
            (tuple(request_kind(kind.method, context) for context in contexts),),
            (kind.context or "?") if is_tool else "",
            call.effect,
            call.upstream,
            self.annotations,
        )
        return call, asked


class Case(Question, frozen=True, kw_only=True):
    """A question, and the right answer."""

    expect: Action
    rule: str | None = None
    """Which rule must decide, where that matters."""
    name: str = ""

    @property
    def title(self) -> str:
        return self.name or f"{self.caller}: {self.tool or self.kind}"


class Cases(Struct, frozen=True, forbid_unknown_fields=True):
    cases: Annotated[list[Case], Meta(min_length=1)]


class Result(Struct, frozen=True):
    """What became of a case."""

    case: str
    expected: str
    action: str
    rule: str
    passed: bool


def read_cases(path: Path) -> list[Case]:
    """The cases in a file. Raises ConfigError that says what is wrong with it."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        cases = msgspec.convert(document, Cases).cases
    except OSError as exc:
        raise ConfigError.of(f"{path} cannot be read: {exc.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        problem = " ".join(str(exc).split())
        raise ConfigError.of(f"{path}: {problem}", "write cases: with a list of them") from None
    for number, case in enumerate(cases):
        if (case.tool is None) is (case.kind is None):
            raise ConfigError.of(
                f"{path}: cases[{number}] must have either tool or kind", "add or remove one"
            )
        try:
            case.put()
        except ProtocolError as exc:
            raise ConfigError.of(f"{path}: cases[{number}]: {exc.message}") from None
    return cases


def run_case(policy: Policy, case: Case) -> Result:
    call, asked = case.put()
    try:
        found = policy.judge_as(call, asked)
        action, rule = found.action.word, found.rule
    except InterlockError as refused:
        action, rule = refused.failure.name, ""
    passed = action == case.expect and case.rule in (None, rule)
    expected = case.expect if case.rule is None else f"{case.expect} by {case.rule}"
    return Result(case.title, expected, action, rule, passed)
