"""Hooks of a driver.py: behaviour that data cannot express (AIP-32).

A driver.py is third-party code. It runs only for drivers that the operator has listed
(`drivers.allow_code`), in a confined process of its own (`code_process`), and every exception
becomes an error of the call.
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
    """An error that a hook returned with a code of the specification."""

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
        """SHA-256 of the running code, in hex. The file may have changed since."""
        self.process = CodeProcess(code)
        self._described = described
        self.transforms: Mapping[str, Callable[[Any], Any]] = dict.fromkeys(
            described.transforms, _run_in_process
        )
        self.refresh: Callable[[], Awaitable[None]] | None = (
            self._refresh if "refresh" in described.hooks else None
        )
        self.builds_arguments = "build_arguments" in described.hooks
        """True if a hook builds the arguments of tool calls."""
        self.parses_results = "parse_tool_result" in described.hooks
        """True if a hook extracts the contract's value from tool results."""

    def executes(self, contract: str) -> bool:
        """Return whether driver.py serves a contract without a tool of the server."""
        return contract in self._described.execute

    def makes_arguments(self, binding: DriverBinding) -> bool:
        """Return whether building the arguments needs the code."""
        return self.builds_arguments or binding.bound.has_transforms

    async def arguments(
        self, binding: DriverBinding, inputs: Mapping[str, Any], context: Any, caller: Caller | None
    ) -> dict[str, Any]:
        """Build the arguments of the tool call. Raises InterlockError."""
        if not self.builds_arguments:
            return await self._map_arguments(binding, inputs)
        hook_arguments = self._hook_arguments(binding, dict(inputs), context, caller)
        response = await self._call("build_arguments", {"arguments": hook_arguments})
        if response.envelope is not None or not isinstance(response.value, dict):
            raise self._hook_error("build_arguments", "it did not return a dict")
        return response.value

    async def _map_arguments(
        self, binding: DriverBinding, inputs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Build the arguments by the entry's mapping and its transformers."""
        bound_entry = binding.bound
        transforms = bound_entry.required_transforms(inputs)
        if not transforms:
            return bound_entry.arguments(inputs)
        values = [(transform, inputs[name]) for transform, name in transforms]
        response = await self._call("transforms", {"values": values})
        results = iter(zip(transforms, self.process.decode_results(response.value), strict=False))

        def next_value(_: Any) -> Any:
            (transform, name), result = next(
                results, ((transforms[-1]), HookResponse(raised="no value"))
            )
            raised = result.raised_error()
            if raised is not None:
                raise raised
            if result.raised:
                reason = printable_excerpt(result.raised)
                raise transformer_failed(binding.contract.id, transform, name, reason)
            return result.value

        return bound_entry.arguments(inputs, dict.fromkeys(self.transforms, next_value))

    async def extract_value(self, binding: DriverBinding, result: Any, context: Any) -> Any:
        """Extract the contract's value from the tool's result. Raises InterlockError."""
        if not self.parses_results:
            return binding.bound.extract_value(result).value
        hook_arguments = self._hook_arguments(binding, {}, context, None, result=result)
        response = await self._call("parse_tool_result", {"arguments": hook_arguments})
        return binding.bound.check_value(_unwrap(response)).value

    async def execute(
        self, binding: DriverBinding, inputs: Mapping[str, Any], context: Any, caller: Caller | None
    ) -> Any:
        """Return the value of a contract that driver.py serves itself. Raises InterlockError."""
        hook_arguments = self._hook_arguments(binding, dict(inputs), context, caller)
        response = await self._call(
            "execute", {"name": binding.contract.id, "arguments": hook_arguments}, bounded=False
        )
        return binding.bound.check_value(_unwrap(response)).value

    async def _refresh(self) -> None:
        await self._call("refresh", {})

    async def _call(
        self, hook: str, message: Mapping[str, Any], *, bounded: bool = True
    ) -> HookResponse:
        """Call a hook. Raises InterlockError, also for an exception of the hook."""
        response = await self.process.call(hook, message, bounded=bounded)
        raised = response.raised_error()
        if raised is not None:
            raise raised
        if response.raised:
            raise self._hook_error(hook, printable_excerpt(response.raised))
        return response

    def _hook_arguments(
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

    def _hook_error(self, hook: str, reason: str) -> InterlockError:
        # The exception's message may contain secrets, so only its name is reported.
        return InterlockError(
            INTERNAL,
            f"{hook} in {ENTRY} of {self.manifest.id} failed ({reason}).",
            {"hook": hook, "raised": reason},
        )


def _unwrap(response: HookResponse) -> Any:
    """Return the value of a hook response. A hook returns a plain value or an envelope of AIP-30.
    Raises InterlockError."""
    envelope = response.envelope
    if envelope is None:
        return response.value
    if envelope.ok:
        return envelope.value
    message = envelope.message or "The driver reported an error without a message."
    if is_namespaced(envelope.code):
        raise ToolFault(envelope.code, message, retryable=envelope.retryable)
    raise HookFault(_failure_of(envelope.code), message, retryable=envelope.retryable)


def _run_in_process(_: Any) -> Any:
    raise RuntimeError("transformers run in the process of their driver.py")


def code_fingerprint(manifest: DriverManifest) -> tuple[int, ...]:
    """Return a fingerprint of a driver's code. Empty: it has none."""
    try:
        status = os.stat(_code_path(manifest, ENTRY))
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _code_path(manifest: DriverManifest, name: str) -> str:
    # Most drivers have no code, and there may be many drivers. Path objects would be slower.
    return os.path.join(os.path.dirname(manifest.file), name)


def read_code(
    manifest: DriverManifest, *, allowed: Collection[str]
) -> tuple[DriverCode | None, list[str]]:
    """Read the code of a driver, if it may run, and return warnings for the operator. Raises
    InterlockError."""
    if not os.path.isfile(_code_path(manifest, ENTRY)):
        if os.path.isfile(_code_path(manifest, _TYPESCRIPT_ENTRY)):
            return None, [f"{_TYPESCRIPT_ENTRY} is ignored: this node runs only {ENTRY}."]
        return None, []
    if manifest.id not in allowed:
        note = f"{ENTRY} does not run. To trust it, add {manifest.id} to drivers.allow_code."
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
    """Create the hooks of a driver whose code was inspected, and return warnings for the operator.
    If the manifest and the code set the same field, the manifest wins.

    Args:
        contracts: ids of the contracts that the manifest implements.

    Raises:
        InterlockError: the code does not serve exactly these contracts.
    """
    # Imported with the first driver that has code: most have none.
    from interlock.manifests.definitions import check_execute, define_driver, merge

    if described is None:
        raise InterlockError(
            EXECUTE_BINDING_MISMATCH,
            f"{ENTRY} of {manifest.id} has no `driver`. Create it with define_driver.",
        )
    try:
        # Checked again: the description comes from an untrusted process.
        definition = define_driver(
            described.values, execute=dict.fromkeys(described.execute, _run_in_process)
        )
        check_execute(definition, contracts)
        merged, warnings = merge(manifest, definition)
    except ManifestError as error:
        raise unusable(manifest.id, error.message.rstrip(".")) from None
    return Hooks(merged, described, code), [str(warning) for warning in warnings]


def _failure_of(code: str) -> Failure:
    """Return the error row of a code of the specification. INTERNAL if the code is unknown."""
    rows = (row for row in all_failures() if aip_code(InterlockError(row, "")) == code)
    return next(rows, INTERNAL)
