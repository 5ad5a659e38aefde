"""What a driver's driver.py brings: behaviour that data cannot express.

It is code of somebody else, so it runs only for drivers that the operator has named
(`drivers.allow_code`), in a confined process of its own (`code_process`), and everything that it
raises becomes an error of the call.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

from interlock.core.call import Caller
from interlock.drivers.code_process import (
    ENTRY,
    CodeDescription,
    CodeProcess,
    DriverCode,
    HookResponse,
    unusable,
)
from interlock.drivers.driver import DriverBinding
from interlock.drivers.errors import ToolFault, aip_code, is_namespaced
from interlock.drivers.processes import printable_excerpt
from interlock.drivers.translation import transformer_failed
from interlock.errors import (
    EXECUTE_BINDING_MISMATCH,
    INTERNAL,
    Failure,
    InterlockError,
    all_failures,
)
from interlock.manifests.document import ManifestError
from interlock.manifests.hook_types import HookArguments
from interlock.manifests.model import DriverManifest

_TYPESCRIPT_ENTRY: Final = "driver.ts"


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
        self, manifest: DriverManifest, described: CodeDescription, code: DriverCode
    ) -> None:
        self.manifest = manifest
        self.digest = code.digest
        """SHA-256 of the code that runs, in hex: the file may be another by now."""
        self.process = CodeProcess(code)
        self._described = described
        self.transforms: Mapping[str, Callable[[Any], Any]] = dict.fromkeys(
            described.transforms, _run_in_process
        )
        self.refresh: Callable[[], Awaitable[None]] | None = (
            self._refresh if "refresh" in described.hooks else None
        )
        self.builds_arguments = "build_arguments" in described.hooks
        """Whether it makes the arguments of the server's tools."""
        self.parses_results = "parse_tool_result" in described.hooks
        """Whether it makes the contract's value of what the server's tools answer."""

    def executes(self, contract: str) -> bool:
        """Whether it serves a contract without a tool of the server."""
        return contract in self._described.execute

    def makes_arguments(self, binding: DriverBinding) -> bool:
        """Whether the arguments of a tool are not to be had without the code."""
        return self.builds_arguments or binding.bound.is_transformed

    async def arguments(
        self, binding: DriverBinding, inputs: Mapping[str, Any], context: Any, caller: Caller | None
    ) -> dict[str, Any]:
        """What the server's tool is called with. Raises InterlockError."""
        if not self.builds_arguments:
            return await self._mapped(binding, inputs)
        asked = self._asked(binding, dict(inputs), context, caller)
        made = await self._call("build_arguments", {"arguments": asked})
        if made.envelope is not None or not isinstance(made.value, dict):
            raise self._wrong("build_arguments", "it did not return a dict")
        return made.value

    async def _mapped(self, binding: DriverBinding, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by the entry's mapping, with what transformers make of the inputs."""
        bound = binding.bound
        needed = bound.transformed(inputs)
        if not needed:
            return bound.arguments(inputs)
        values = [(transform, inputs[name]) for transform, name in needed]
        answer = await self._call("transforms", {"values": values})
        made = iter(zip(needed, self.process.answers(answer.value), strict=False))

        def take(_: Any) -> Any:
            (transform, name), found = next(made, ((needed[-1]), HookResponse(raised="no value")))
            own = found.raised_error()
            if own is not None:
                raise own
            if found.raised:
                why = printable_excerpt(found.raised)
                raise transformer_failed(binding.contract.id, transform, name, why)
            return found.value

        return bound.arguments(inputs, dict.fromkeys(self.transforms, take))

    async def value(self, binding: DriverBinding, result: Any, context: Any) -> Any:
        """The contract's value in the tool's result. Raises InterlockError."""
        if not self.parses_results:
            return binding.bound.value(result).value
        asked = self._asked(binding, {}, context, None, result=result)
        made = await self._call("parse_tool_result", {"arguments": asked})
        return binding.bound.checked(_unwrapped(made)).value

    async def execute(
        self, binding: DriverBinding, inputs: Mapping[str, Any], context: Any, caller: Caller | None
    ) -> Any:
        """The value of a contract that the driver serves by itself. Raises InterlockError."""
        asked = self._asked(binding, dict(inputs), context, caller)
        made = await self._call(
            "execute", {"name": binding.contract.id, "arguments": asked}, bounded=False
        )
        return binding.bound.checked(_unwrapped(made)).value

    async def _refresh(self) -> None:
        await self._call("refresh", {})

    async def _call(
        self, hook: str, message: Mapping[str, Any], *, bounded: bool = True
    ) -> HookResponse:
        """Raises InterlockError, also for what the hook raises."""
        made = await self.process.call(hook, message, bounded=bounded)
        own = made.raised_error()
        if own is not None:
            raise own
        if made.raised:
            raise self._wrong(hook, printable_excerpt(made.raised))
        return made

    def _asked(
        self,
        binding: DriverBinding,
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

    def _wrong(self, hook: str, why: str) -> InterlockError:
        # What it raised may hold anything, secrets too: only its name is known here.
        return InterlockError(
            INTERNAL,
            f"{hook} in {ENTRY} of {self.manifest.id} failed ({why}).",
            {"hook": hook, "raised": why},
        )


def _unwrapped(made: HookResponse) -> Any:
    """A hook answers with a value, or with the envelope of AIP-30. Raises InterlockError."""
    envelope = made.envelope
    if envelope is None:
        return made.value
    if envelope.ok:
        return envelope.value
    message = envelope.message or "The driver failed."
    if is_namespaced(envelope.code):
        raise ToolFault(envelope.code, message, retryable=envelope.retryable)
    raise HookFault(_failure_of(envelope.code), message, retryable=envelope.retryable)


def _run_in_process(_: Any) -> Any:
    raise RuntimeError("transformers run in the process of their driver.py")


def code_fingerprint(manifest: DriverManifest) -> tuple[int, ...]:
    """By what it is seen that a driver's code changed; empty when it has none."""
    try:
        status = os.stat(_beside(manifest, ENTRY))
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _beside(manifest: DriverManifest, name: str) -> str:
    # Most drivers have no code, and there may be many of them: paths as objects cost more.
    return os.path.join(os.path.dirname(manifest.file), name)


def read_code(
    manifest: DriverManifest, *, allowed: Collection[str]
) -> tuple[DriverCode | None, list[str]]:
    """The code of a driver, where it may be run, and what the operator should know. Raises
    InterlockError."""
    if not os.path.isfile(_beside(manifest, ENTRY)):
        if os.path.isfile(_beside(manifest, _TYPESCRIPT_ENTRY)):
            return None, [f"{_TYPESCRIPT_ENTRY} is ignored: this node runs {ENTRY} only."]
        return None, []
    if manifest.id not in allowed:
        note = f"{ENTRY} is not run: name {manifest.id} under drivers.allow_code to trust it."
        return None, [note]
    path = manifest.folder / ENTRY
    try:
        text = path.read_bytes()
    except OSError as error:
        raise unusable(manifest.id, f"it cannot be read ({error.strerror})") from None
    return DriverCode(
        driver=manifest.id,
        name=manifest.key,
        file=str(path),
        folder=str(manifest.folder),
        text=text,
        digest=hashlib.sha256(text).hexdigest(),
    ), []


def make_hooks(
    manifest: DriverManifest,
    contracts: Collection[str],
    code: DriverCode,
    described: CodeDescription | None,
) -> tuple[Hooks, list[str]]:
    """The hooks of a driver whose code was inspected, and what the operator should know. Raises
    InterlockError when they do not serve exactly the `contracts` that the manifest says. Where the
    two say something of the same field, the manifest counts."""
    # Most drivers have no code: what it takes to run it is imported with the first that does.
    from interlock.manifests.definitions import check_execute, define_driver, merge

    if described is None:
        raise InterlockError(
            EXECUTE_BINDING_MISMATCH,
            f"{ENTRY} of {manifest.id} has no `driver` that was made by define_driver.",
        )
    try:
        # Checked once more: what the process says of itself is a stranger's word.
        definition = define_driver(
            described.values, execute=dict.fromkeys(described.execute, _run_in_process)
        )
        check_execute(definition, contracts)
        merged, warnings = merge(manifest, definition)
    except ManifestError as error:
        raise unusable(manifest.id, error.message.rstrip(".")) from None
    return Hooks(merged, described, code), [str(warning) for warning in warnings]


def _failure_of(code: str) -> Failure:
    """What the specification means by a code; INTERNAL when it means nothing."""
    rows = (row for row in all_failures() if aip_code(InterlockError(row, "")) == code)
    return next(rows, INTERNAL)
