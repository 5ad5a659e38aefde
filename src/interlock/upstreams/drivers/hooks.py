"""What a driver's driver.py brings: behaviour that data cannot express.

It is code of somebody else that runs in the node, so it is imported only for drivers that the
operator has named (`drivers.allow_code`), and everything it raises becomes an error of the call.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from interlock.call import Caller
from interlock.catalog.drivers.faults import ToolFault, is_namespaced
from interlock.errors import EXECUTE_BINDING_MISMATCH, INTERNAL, TOOL_UNAVAILABLE, InterlockError
from interlock.manifests.driver import DriverManifest
from interlock.manifests.hooking import HookArguments, HookResult
from interlock.upstreams.drivers.driver import Binding

if TYPE_CHECKING:
    from interlock.manifests.definitions import DriverDefinition

ENTRY: Final = "driver.py"
_OTHER_ENTRY: Final = "driver.ts"

_log = logging.getLogger("interlock.drivers")


class Hooks:
    """The hooks of one driver."""

    def __init__(self, manifest: DriverManifest, definition: DriverDefinition) -> None:
        self.manifest = manifest
        self._definition = definition
        self.transforms: Mapping[str, Callable[[Any], Any]] = definition.transforms
        self.refresh: Callable[[], Awaitable[None]] | None = definition.refresh

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
            made = body(asked)
            if inspect.isawaitable(made):
                made = await made
        except InterlockError:
            raise
        except Exception as bug:
            raise self._wrong("execute", type(bug).__name__) from bug
        return binding.bound.checked(self._unwrapped(made)).value

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
        except Exception as bug:
            raise self._wrong(getattr(hook, "__name__", "a hook"), type(bug).__name__) from bug

    def _unwrapped(self, made: Any) -> Any:
        """A hook answers with a value, or with the envelope of AIP-30."""
        if not isinstance(made, HookResult):
            return made
        if made.ok:
            return made.value
        code = made.code or "internal"
        if is_namespaced(code):
            raise ToolFault(code, made.message, retryable=made.retryable)
        raise InterlockError(INTERNAL, made.message or "The driver failed.", {"code": code})

    def _wrong(self, hook: str, why: str) -> InterlockError:
        # What it raised may hold anything, secrets too.
        return InterlockError(
            INTERNAL, f"{hook} in {ENTRY} of {self.manifest.id} failed ({why}).", {"hook": hook}
        )


def code_digest(manifest: DriverManifest) -> str:
    """Of a driver's code; empty when it has none."""
    try:
        return hashlib.sha256((manifest.folder / ENTRY).read_bytes()).hexdigest()
    except OSError:
        return ""


def load_hooks(
    manifest: DriverManifest, contracts: Collection[str], *, allowed: Collection[str]
) -> tuple[Hooks | None, list[str]]:
    """The hooks of a driver, and what the operator should know. Raises InterlockError when its code
    cannot be used, or does not serve exactly the `contracts` that the manifest says. Where the two
    say something of the same field, the manifest counts."""
    path = manifest.folder / ENTRY
    if not path.is_file():
        if (manifest.folder / _OTHER_ENTRY).is_file():
            return None, [f"{_OTHER_ENTRY} is ignored: this node runs {ENTRY} only."]
        return None, []
    if manifest.id not in allowed:
        note = f"{ENTRY} is not run: name {manifest.id} under drivers.allow_code to trust it."
        return None, [note]
    # Most drivers have no code: what it takes to run it is imported with the first that does.
    from interlock.manifests.definitions import DriverDefinition, check_execute, merge

    try:
        spec = importlib.util.spec_from_file_location(f"_driver_{manifest.digest[:16]}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as bug:
        _log.warning("%s of %s cannot be imported", ENTRY, manifest.id, exc_info=True)
        raise InterlockError(
            TOOL_UNAVAILABLE,
            f"{ENTRY} of {manifest.id} cannot be imported ({type(bug).__name__}).",
        ) from None
    definition = getattr(module, "driver", None)
    if not isinstance(definition, DriverDefinition):
        raise InterlockError(
            EXECUTE_BINDING_MISMATCH,
            f"{ENTRY} of {manifest.id} has no `driver` that was made by define_driver.",
        )
    check_execute(definition, contracts)
    merged, warnings = merge(manifest, definition)
    return Hooks(merged, definition), [str(one) for one in warnings]
