"""Cases for `interlock policy test`: what is asked for, by whom, and what must come of it."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
import yaml
from msgspec import Meta, Struct, field

from interlock.call import Call, Caller, Client, Credentials
from interlock.config import ConfigError
from interlock.config.problems import quoted
from interlock.config.trust import Action, EffectName
from interlock.errors import InterlockError, ProtocolError
from interlock.pipeline.policy import Policy
from interlock.pipeline.policy.reading import spellings
from interlock.pipeline.policy.rule import Asked
from interlock.protocol.kinds import Kind, read_kind, request_kind
from interlock.protocol.mcp import LATEST_STATELESS, TOOLS_CALL, Era

_FORM = "write cases: with a list of them, such as - {tool: github.delete_repo, expect: deny}"
_KINDS = {
    "roles": "write a list: [clerk]",
    "scopes": "write a list: [read]",
    "arguments": "write keys and values: {amount: 5000}",
    "annotations": "write keys and values: {destructiveHint: true}",
}
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


class Result(Struct, frozen=True):
    """What became of a case."""

    case: str
    expected: str
    action: str
    rule: str
    passed: bool


def read_cases(path: Path) -> list[Case]:
    """The cases in a file. Raises ConfigError that says what is wrong with it, and where."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError.of(f"{path} cannot be read: {exc.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        raise ConfigError.of(f"{path}: {' '.join(str(exc).split())}", _FORM) from None
    listed = document.get("cases") if isinstance(document, dict) else None
    if not isinstance(listed, list) or not listed:
        raise ConfigError.of(f"{path}: there are no cases in it", _FORM)
    others = [str(key) for key in document if key != "cases"]
    if others:
        raise ConfigError.of(f"{path}: {others[0]}: unknown key", "only cases: stands here")
    return [_read_case(path, number, one) for number, one in enumerate(listed)]


def _read_case(path: Path, number: int, given: Any) -> Case:
    place = f"{path}: cases[{number}]"
    if not isinstance(given, dict):
        raise ConfigError.of(f"{place} is no case", _FORM)
    named = given.get("name") or given.get("tool") or given.get("kind")
    place += f" ({named})" if isinstance(named, str) else ""
    keys = [one.name for one in msgspec.structs.fields(Case)]
    for key in map(str, given):
        if key not in keys:
            close = difflib.get_close_matches(key, keys, n=1)
            hint = f'did you mean "{close[0]}"?' if close else f"the keys are {', '.join(keys)}"
            raise ConfigError.of(f"{place}: {key}: unknown key", hint)
    if "expect" not in given:
        raise ConfigError.of(f"{place}: expect is missing", f"add one of {_words(Action)}")
    try:
        case = msgspec.convert(given, Case)
    except (msgspec.ValidationError, RecursionError) as exc:
        raise ConfigError.of(*_complaint(place, given, str(exc))) from None
    if (case.tool is None) is (case.kind is None):
        raise ConfigError.of(f"{place} must have either tool or kind", "add or remove one")
    try:
        case.put()
    except ProtocolError as exc:
        raise ConfigError.of(f"{place}: kind: {exc.message}") from None
    return case


def _complaint(place: str, given: dict[str, Any], text: str) -> tuple[str, str]:
    """What is wrong with one value, and what to write instead."""
    what, _, where = text.partition(" - at `$.")
    key = re.split(r"[.\[`]", where)[0] or "?"
    words = {"expect": _words(Action), "effect": _words(EffectName)}.get(key)
    value = given.get(key)
    if words is None:
        return f"{place}: {key}: {what[:1].lower()}{what[1:]}", _KINDS.get(key, "")
    close = difflib.get_close_matches(str(value), words.split(", "), n=1)
    hint = f'did you mean "{close[0]}"?' if close else f"write one of {words}"
    return f"{place}: {key}: {quoted(str(value))} is none of {words}", hint


def _words(literal: Any) -> str:
    return ", ".join(get_args(literal))


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
