"""Hooks of a driver.py: what they may answer, and what becomes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.catalog.drivers.faults import ToolFault, aip_code
from interlock.catalog.drivers.translating import BoundEntry
from interlock.errors import InterlockError
from interlock.manifests.definitions import define_driver
from interlock.manifests.hooking import HookArguments, HookResult
from interlock.upstreams.drivers.driver import Binding
from interlock.upstreams.drivers.hooks import Hooks
from tests.upstreams.drivers.driver_parts import contract, manifest


def bound(**hooks: Any) -> tuple[Hooks, Binding]:
    driver = manifest()
    tool = contract()
    (entry,) = driver.implements
    return Hooks(driver, define_driver(**hooks)), Binding(tool, entry, BoundEntry(tool, entry))


def parsed(made: Any) -> Any:
    hooks, binding = bound(parse_tool_result=lambda _: made)
    return hooks.value(binding, {"content": []}, {})


@pytest.mark.spec("DR-32.define-2", "DR-30.errors-1")
def test_a_hook_answers_with_a_value_or_an_envelope() -> None:
    assert parsed({"said": "x"}) == {"said": "x"}
    assert parsed(HookResult(value={"said": "y"})) == {"said": "y"}
    # What the contract wants one member of may be that member's value alone.
    assert parsed("z") == {"said": "z"}
    hooks, _ = bound()
    assert not hooks.builds_arguments


@pytest.mark.spec("DR-30.errors-2", "DR-30.errors-3")
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("stripe:card_declined", "stripe:card_declined"),
        ("auth_required", "auth_required"),
        ("timeout", "timeout"),
        ("input_invalid", "input_invalid"),
        ("no such code", "internal"),
        ("", "internal"),
    ],
)
@pytest.mark.parametrize("retryable", [False, True])
def test_the_code_of_an_envelope_is_kept(code: str, told: str, retryable: bool) -> None:
    with pytest.raises(InterlockError) as raised:
        parsed(HookResult(ok=False, code=code, message="No.", retryable=retryable))
    error = raised.value
    assert (aip_code(error), error.message) == (told, "No.")
    assert error.retryable is retryable
    assert isinstance(error, ToolFault) is (":" in code)


@pytest.mark.spec("DR-16.io-2")
def test_what_a_hook_makes_has_to_fit_the_contract() -> None:
    with pytest.raises(InterlockError) as raised:
        parsed({"other": 1})
    assert raised.value.failure.name == "output_parse_failed"


def test_arguments_have_to_be_an_object() -> None:
    seen: list[HookArguments] = []

    def build(args: HookArguments) -> Any:
        seen.append(args)
        return ["no object"] if args.input["text"] == "bad" else {"message": args.input["text"]}

    hooks, binding = bound(build_arguments=build)
    assert hooks.builds_arguments
    context = {"tenant": "acme"}
    assert hooks.arguments(binding, {"text": "hi"}, context, None) == {"message": "hi"}
    (args,) = seen
    assert (args.tool_id, args.tool_name, args.user) == ("text.echo", "echo", "")
    with pytest.raises(InterlockError) as raised:
        hooks.arguments(binding, {"text": "bad"}, {}, None)
    assert "did not return a dict" in raised.value.message


def test_a_hook_may_not_change_what_the_caller_sent() -> None:
    def build(args: HookArguments) -> Any:
        args.input["text"] = "another"
        return args.input

    hooks, binding = bound(build_arguments=build)
    given = {"text": "mine"}
    hooks.arguments(binding, given, {}, None)
    assert given == {"text": "mine"}


@pytest.mark.parametrize("plain", [False, True])
def test_refreshing_may_be_a_plain_function(plain: bool) -> None:
    done: list[bool] = []

    async def later() -> None:
        done.append(True)

    def now() -> None:
        done.append(True)

    def leaves() -> None:
        raise SystemExit(1)

    hooks, _ = bound(refresh=now if plain else later)
    assert hooks.refresh is not None
    asyncio.run(_done(hooks.refresh()))
    assert done == [True]
    hooks, _ = bound(refresh=leaves)
    assert hooks.refresh is not None
    with pytest.raises(InterlockError):
        asyncio.run(_done(hooks.refresh()))


async def _done(work: Any) -> None:
    await work
