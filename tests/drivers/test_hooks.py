"""Hooks of a driver.py: their results and errors, in a real process without confinement."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.drivers.code_process import DriverCode, inspect_code
from interlock.drivers.driver import DriverBinding
from interlock.drivers.errors import ToolFault, aip_code
from interlock.drivers.hooks import Hooks, make_hooks
from interlock.drivers.translation import BoundEntry
from interlock.errors import InterlockError
from tests.drivers.driver_parts import contract, manifest
from tests.support.upstreams import run

pytestmark = pytest.mark.usefixtures("no_leaks")


@asynccontextmanager
async def bind_hooks(folder: Path, code: str) -> AsyncIterator[tuple[Hooks, DriverBinding]]:
    driver, tool = manifest(), contract()
    (entry,) = driver.implements
    text = ("from interlock.manifests.definitions import define_driver\n"
            "from interlock.manifests.hook_types import HookResult\n" + code).encode()  # fmt: skip
    read = DriverCode(
        driver=driver.id,
        name=driver.key,
        file=str(folder / "driver.py"),
        folder=str(folder),
        text=text,
        digest=hashlib.sha256(text).hexdigest(),
    )
    described = await inspect_code(read, no_confinement, env={})
    hooks, _ = make_hooks(driver, [tool.id], read, described)
    hooks.process.open_confinement = no_confinement
    try:
        yield hooks, DriverBinding(tool, entry, BoundEntry(tool, entry))
    finally:
        await hooks.process.close()


async def no_confinement() -> None:
    return None


PARSES = """
def parse_tool_result(args):
    made = args.result["made"]
    return HookResult(**made) if args.result["envelope"] else made

driver = define_driver(parse_tool_result=parse_tool_result)
"""


async def parse_result(
    hooks: Hooks, binding: DriverBinding, made: Any, *, envelope: bool = False
) -> Any:
    return await hooks.extract_value(binding, {"made": made, "envelope": envelope}, {})


@pytest.mark.spec("DR-32.define-2", "DR-30.errors-1", "DR-16.io-2")
async def test_hook_returns_value_or_envelope(tmp_path: Path) -> None:
    async with bind_hooks(tmp_path, PARSES) as (hooks, binding):
        assert not hooks.builds_arguments
        assert await parse_result(hooks, binding, {"said": "x"}) == {"said": "x"}
        made = {"value": {"said": "y"}}
        assert await parse_result(hooks, binding, made, envelope=True) == {"said": "y"}
        # What the contract wants one member of may be that member's value alone.
        assert await parse_result(hooks, binding, "z") == {"said": "z"}
        # And it has to fit the contract.
        with pytest.raises(InterlockError) as error:
            await parse_result(hooks, binding, {"other": 1})
        assert error.value.failure.name == "output_parse_failed"


CODES = {
    "stripe:card_declined": "stripe:card_declined",
    "auth_required": "auth_required",
    "timeout": "timeout",
    "input_invalid": "input_invalid",
    "no such code": "internal",
    "": "internal",
}


@pytest.mark.spec("DR-30.errors-2", "DR-30.errors-3")
async def test_hook_error_code_is_kept(tmp_path: Path) -> None:
    async with bind_hooks(tmp_path, PARSES) as (hooks, binding):
        for code, told in CODES.items():
            for retryable in (False, True):
                made = {"ok": False, "code": code, "message": "No.", "retryable": retryable}
                with pytest.raises(InterlockError) as raised:
                    await parse_result(hooks, binding, made, envelope=True)
                error = raised.value
                assert (aip_code(error), error.message) == (told, "No.")
                assert error.retryable is retryable
                assert isinstance(error, ToolFault) is (":" in code)


BUILDS = """
def build_arguments(args):
    if args.input["text"] == "bad":
        return ["no object"]
    said = [args.tool_id, args.tool_name, args.user, args.context.get("tenant", "")]
    args.input["text"] = "another"
    return {"message": said}

driver = define_driver(build_arguments=build_arguments)
"""


async def test_built_arguments_must_be_object(tmp_path: Path) -> None:
    async with bind_hooks(tmp_path, BUILDS) as (hooks, binding):
        assert hooks.builds_arguments
        arguments = {"text": "hi"}
        made = await hooks.arguments(binding, arguments, {"tenant": "acme"}, None)
        assert made == {"message": ["text.echo", "echo", "", "acme"]}
        # A hook may not change what the caller sent.
        assert arguments == {"text": "hi"}
        with pytest.raises(InterlockError) as error:
            await hooks.arguments(binding, {"text": "bad"}, {}, None)
        assert "did not return a dict" in error.value.message


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_refresh_may_be_plain_function(tmp_path: Path, kind: str) -> None:
    done = tmp_path / "done"
    code = f"""
{kind} refresh():
    if open({str(done)!r}, "a").tell():
        raise SystemExit(1)
    open({str(done)!r}, "w").write("done")

driver = define_driver(refresh=refresh)
"""

    async def body() -> None:
        async with bind_hooks(tmp_path, code) as (hooks, _):
            assert hooks.refresh is not None
            await hooks.refresh()
            with pytest.raises(InterlockError) as error:
                await hooks.refresh()
            assert error.value.data == {"hook": "refresh", "raised": "SystemExit"}

    run(body)
    assert done.read_bytes() == b"done"
