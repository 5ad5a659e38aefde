"""What a driver's driver.py brings: behaviour that data cannot express.

It is code of somebody else that runs in the node, so it is imported only for drivers that the
operator has named (`drivers.allow_code`), and everything it raises becomes an error of the call.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from interlock.call import Caller
from interlock.catalog.drivers.faults import ToolFault, aip_code, is_namespaced
from interlock.errors import (
    EXECUTE_BINDING_MISMATCH,
    INTERNAL,
    TOOL_UNAVAILABLE,
    Failure,
    InterlockError,
    all_failures,
)
from interlock.manifests.driver import DriverManifest
from interlock.manifests.findings import ManifestError
from interlock.manifests.hooking import HookArguments, HookResult
from interlock.upstreams.drivers.driver import Binding

if TYPE_CHECKING:
    from interlock.manifests.definitions import DriverDefinition

ENTRY: Final = "driver.py"
_OTHER_ENTRY: Final = "driver.ts"
_ANYTHING: Final = (Exception, SystemExit)
"""What somebody else's code may raise and must not get through: not even its wish to end the
program."""


class HookFault(InterlockError):
    """What a hook says that went wrong, in the words of the specification."""

    def __init__(self, failure: Failure, message: str, *, retryable: bool) -> None:
        super().__init__(failure, message)
        self._retryable = retryable

    @property
    def retryable(self) -> bool:
        return self._retryable or super().retryable


class Hooks:
    """The hooks of one driver."""

    def __init__(
        self, manifest: DriverManifest, definition: DriverDefinition, digest: str = ""
    ) -> None:
        self.manifest = manifest
        self.digest = digest
        """SHA-256 of the code that runs, in hex: the file may be another by now."""
        self._definition = definition
        self.transforms: Mapping[str, Callable[[Any], Any]] = {
            name: _contained(transform) for name, transform in definition.transforms.items()
        }
        self.refresh: Callable[[], Awaitable[None]] | None = (
            None if definition.refresh is None else self._refresh
        )

    @property
    def builds_arguments(self) -> bool:
        """Whether it makes the arguments of the server's tools."""
        return self._definition.build_arguments is not None

    @property
    def parses_results(self) -> bool:
        """Whether it makes the contract's value of what the server's tools answer."""
        return self._definition.parse_tool_result is not None

    def executes(self, contract: str) -> bool:
        """Whether it serves a contract without a tool of the server."""
        return contract in self._definition.execute

    def arguments(
        self, binding: Binding, inputs: Mapping[str, Any], context: Any, caller: Caller | None
    ) -> dict[str, Any]:
        """What the server's tool is called with. Raises InterlockError."""
        build = self._definition.build_arguments
        if build is None:
            return binding.bound.arguments(inputs)
        made = self._call(build, self._asked(binding, dict(inputs), context, caller))
        if not isinstance(made, dict):
            raise self._wrong("build_arguments", "it did not return a dict")
        return made

    def value(self, binding: Binding, result: Any, context: Any) -> Any:
        """The contract's value in the tool's result. Raises InterlockError."""
        parse = self._definition.parse_tool_result
        if parse is None:
            return binding.bound.value(result).value
        asked = self._asked(binding, {}, context, None, result=result)
        return binding.bound.checked(self._unwrapped(self._call(parse, asked))).value

    async def execute(
        self, binding: Binding, inputs: Mapping[str, Any], context: Any, caller: Caller | None
    ) -> Any:
        """The value of a contract that the driver serves by itself. Raises InterlockError."""
        body = self._definition.execute[binding.contract.id]
        asked = self._asked(binding, dict(inputs), context, caller)
        try:
            if inspect.iscoroutinefunction(body):
                made = await body(asked)
            else:
                # It may take its time: others are served meanwhile.
                made = await asyncio.to_thread(body, asked)
                if inspect.isawaitable(made):
                    made = await made
        except InterlockError:
            raise
        except _ANYTHING as bug:
            raise self._wrong("execute", type(bug).__name__) from None
        return binding.bound.checked(self._unwrapped(made)).value

    async def _refresh(self) -> None:
        """Its `refresh`, which may be a plain function."""
        refresh = self._definition.refresh
        assert refresh is not None
        try:
            if inspect.iscoroutinefunction(refresh):
                await refresh()
            else:
                made = await asyncio.to_thread(refresh)
                if inspect.isawaitable(made):
                    await made
        except SystemExit as bug:
            raise self._wrong("refresh", type(bug).__name__) from None

    def _asked(
        self,
        binding: Binding,
        inputs: dict[str, Any],
        context: Any,
        caller: Caller | None,
        *,
        result: Any = None,
    ) -> HookArguments:
        mcp = binding.entry.mcp
        return HookArguments(
            tool_id=binding.contract.id,
            tool_name="" if mcp is None else mcp.tool_name,
            input=inputs,
            context=context if isinstance(context, dict) else {},
            user="" if caller is None else caller.name,
            result=result,
        )

    def _call(self, hook: Callable[[HookArguments], Any], asked: HookArguments) -> Any:
        try:
            return hook(asked)
        except InterlockError:
            raise
        except _ANYTHING as bug:
            raise self._wrong(getattr(hook, "__name__", "a hook"), type(bug).__name__) from None

    def _unwrapped(self, made: Any) -> Any:
        """A hook answers with a value, or with the envelope of AIP-30."""
        if not isinstance(made, HookResult):
            return made
        if made.ok:
            return made.value
        message = made.message or "The driver failed."
        if is_namespaced(made.code):
            raise ToolFault(made.code, message, retryable=made.retryable)
        raise HookFault(_failure_of(made.code), message, retryable=made.retryable)

    def _wrong(self, hook: str, why: str) -> InterlockError:
        # What it raised may hold anything, secrets too.
        return InterlockError(
            INTERNAL, f"{hook} in {ENTRY} of {self.manifest.id} failed ({why}).", {"hook": hook}
        )


def code_mark(manifest: DriverManifest) -> tuple[int, ...]:
    """By what it is seen that a driver's code changed; empty when it has none."""
    try:
        status = os.stat(_beside(manifest, ENTRY))
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _beside(manifest: DriverManifest, name: str) -> str:
    # Most drivers have no code, and there may be many of them: paths as objects cost more.
    return os.path.join(os.path.dirname(manifest.file), name)


def load_hooks(
    manifest: DriverManifest, contracts: Collection[str], *, allowed: Collection[str]
) -> tuple[Hooks | None, list[str]]:
    """The hooks of a driver, and what the operator should know. Raises InterlockError when its code
    cannot be used, or does not serve exactly the `contracts` that the manifest says. Where the two
    say something of the same field, the manifest counts."""
    if not os.path.isfile(_beside(manifest, ENTRY)):
        if os.path.isfile(_beside(manifest, _OTHER_ENTRY)):
            return None, [f"{_OTHER_ENTRY} is ignored: this node runs {ENTRY} only."]
        return None, []
    if manifest.id not in allowed:
        note = f"{ENTRY} is not run: name {manifest.id} under drivers.allow_code to trust it."
        return None, [note]
    # Most drivers have no code: what it takes to run it is imported with the first that does.
    from interlock.manifests.definitions import DriverDefinition, check_execute, merge

    module, digest = _run(manifest)
    definition = getattr(module, "driver", None)
    if not isinstance(definition, DriverDefinition):
        raise InterlockError(
            EXECUTE_BINDING_MISMATCH,
            f"{ENTRY} of {manifest.id} has no `driver` that was made by define_driver.",
        )
    check_execute(definition, contracts)
    merged, warnings = merge(manifest, definition)
    return Hooks(merged, definition, digest), [str(one) for one in warnings]


def _run(manifest: DriverManifest) -> tuple[ModuleType, str]:
    """A driver's code, run, and the digest of it. Raises InterlockError."""
    path = manifest.folder / ENTRY
    # Not by the import system: what that keeps of a file is as old as its clock is coarse.
    module = ModuleType("_driver_" + re.sub(r"\W", "_", manifest.key))
    module.__file__ = str(path)
    # Some libraries look up names in the module in which a class was made.
    sys.modules[module.__name__] = module
    try:
        code = path.read_bytes()
        exec(compile(code, str(path), "exec"), module.__dict__)
    except ManifestError as error:
        raise _unusable(manifest, error.message) from None
    except _ANYTHING as bug:
        raise _unusable(manifest, f"it raised {type(bug).__name__}{_line_of(bug, path)}") from None
    return module, hashlib.sha256(code).hexdigest()


def _unusable(manifest: DriverManifest, why: str) -> InterlockError:
    return InterlockError(TOOL_UNAVAILABLE, f"{ENTRY} of {manifest.id} cannot be imported: {why}.")


def _line_of(bug: BaseException, path: Path) -> str:
    """Where in a driver's code something happened; no word of what it said."""
    if isinstance(bug, SyntaxError):
        return f" in line {bug.lineno}" if bug.lineno else ""
    lines = [
        number for frame, number in traceback.walk_tb(bug.__traceback__)
        if frame.f_code.co_filename == str(path)
    ]  # fmt: skip
    return f" in line {lines[-1]}" if lines else ""


def _failure_of(code: str) -> Failure:
    """What the specification means by a code; INTERNAL when it means nothing."""
    rows = (row for row in all_failures() if aip_code(InterlockError(row, "")) == code)
    return next(rows, INTERNAL)


def _contained(transform: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A transformer that ends no more than its call."""

    def run(value: Any) -> Any:
        try:
            return transform(value)
        except SystemExit:
            raise RuntimeError("it wanted to end the program") from None

    return run
