"""`interlock drivers test`: run the examples of contracts against the real servers of drivers."""

from __future__ import annotations

import difflib
import json as json_text
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec import Struct, field

from interlock.terminal import config_source, output
from interlock.terminal.options import Json

if TYPE_CHECKING:
    from interlock.drivers.commands.workspace import DriverProject
    from interlock.drivers.standalone import StandaloneServer
    from interlock.manifests.binding import EntryBinding
    from interlock.manifests.model import DriverManifest, Example

_MAX_LINES: Final = 40
_NO_EXAMPLES: Final = "it has no examples"
OK, DIFFERS, FAILED, SKIPPED, UNREACHABLE = "ok", "differs", "failed", "skipped", "unreachable"


class ExampleResult(Struct):
    """The result of one example at one driver."""

    driver: str
    contract: str
    example: str
    outcome: str
    message: str = ""
    """Reason of a failure or a skip."""
    difference: list[str] = field(default_factory=list)
    value: Any = None


def run_tests(
    name: Annotated[
        str,
        typer.Argument(metavar="ID|TOOL", help="A driver, or a contract.", show_default=False),
    ],
    changes: Annotated[
        bool,
        typer.Option("--changes", help="Also run examples of contracts that change something."),
    ] = False,
    json: Json = False,
    config: config_source.ConfigOption = None,
) -> None:
    """Run the examples of contracts against the real servers of drivers, and show differences.

    For a driver, tests every contract that it serves. For a contract, tests every driver that
    serves it. Exit code 1 if an example fails or nothing was tested, 4 if a server cannot be
    reached.

    \b
    Examples:
      interlock drivers test filesystem-mcp
      interlock drivers test time.now --json
    """
    from interlock.drivers.commands.workspace import open_project
    from interlock.terminal.event_loop import run

    project = open_project(config)
    results = run(_run_all(project, name, changes=changes))
    if json:
        output.print_json(results)
    else:
        for result in results:
            _print(result)
    outcomes = {result.outcome for result in results}
    if outcomes & {DIFFERS, FAILED}:
        raise typer.Exit(output.FAILED)
    if UNREACHABLE in outcomes:
        raise typer.Exit(output.UNREACHABLE)
    if OK not in outcomes:
        # No test must not look like a success in CI.
        output.print_problem(f"no example of {output.sanitize(name)} was run: {_advice(results)}.")
        raise typer.Exit(output.FAILED)


def _advice(results: list[ExampleResult]) -> str:
    """Return what to do if no example was run."""
    if not results:
        return "no driver serves it"
    if all(result.message == _NO_EXAMPLES for result in results):
        return "add examples to its TOOL.md (name, input, output)"
    return "use --changes to run examples that change something, or add examples to a TOOL.md"


async def _run_all(project: DriverProject, name: str, *, changes: bool) -> list[ExampleResult]:
    results: list[ExampleResult] = []
    if project.is_contract(name):
        contract = project.contract(name)
        keys = project.workspace.serving.get(contract.key, ())
        if not keys:
            output.print_note(f"No driver serves {contract.id}.")
        for key in keys:
            manifest = project.workspace.drivers[key]
            contract_bindings = [
                b for b in project.workspace.bindings[key] if b.contract.key == contract.key
            ]
            results += await _run_driver(project, manifest, contract_bindings, changes=changes)
        return results
    manifest = project.manifest(name)
    bindings = project.workspace.bindings[manifest.key]
    return await _run_driver(project, manifest, list(bindings), changes=changes)


async def _run_driver(
    project: DriverProject, manifest: DriverManifest, bindings: list[EntryBinding], *, changes: bool
) -> list[ExampleResult]:
    from interlock.drivers.binding import check_listed
    from interlock.drivers.commands.standalone_server import connection_error_text, open_server
    from interlock.drivers.standalone import open_hooks
    from interlock.errors import InterlockError

    results: list[ExampleResult] = []
    runnable: list[EntryBinding] = []
    for binding in bindings:
        contract = binding.contract
        if not contract.examples:
            results.append(ExampleResult(manifest.id, contract.id, "", SKIPPED, _NO_EXAMPLES))
        elif contract.mutates and not changes:
            reason = "it changes something; use --changes to run it"
            results.append(ExampleResult(manifest.id, contract.id, "", SKIPPED, reason))
        else:
            runnable.append(binding)
    if not runnable:
        return results
    try:
        async with open_server(manifest, project, warn=output.print_note) as server:
            tools = server.tools()
            async with open_hooks(manifest, project, warn=output.print_note) as hooks:
                for binding in runnable:
                    problems = check_listed(binding.contract, binding.entry, tools).errors
                    if problems:
                        message = output.sanitize(" ".join(problems))
                        results.append(
                            ExampleResult(manifest.id, binding.contract.id, "", FAILED, message)
                        )
                        continue
                    results += await _run_examples(server, binding, hooks)
        for sentence in (*server.secret_notes(), *server.egress_notes()):
            output.print_note(sentence)
    except InterlockError as error:
        results.append(
            ExampleResult(
                manifest.id, "", "", UNREACHABLE, connection_error_text(manifest.id, error)
            )
        )
    return results


async def _run_examples(
    server: StandaloneServer, binding: EntryBinding, hooks: Any
) -> list[ExampleResult]:
    from interlock.drivers.driver import DriverBinding
    from interlock.drivers.translation import BoundEntry

    transforms = {} if hooks is None else hooks.transforms
    driver_binding = DriverBinding(
        binding.contract,
        binding.entry,
        BoundEntry(binding.contract, binding.entry, transforms=transforms),
    )
    return [
        await _run_example(server, driver_binding, hooks, number, example)
        for number, example in enumerate(binding.contract.examples, 1)
    ]


async def _run_example(
    server: StandaloneServer, binding: Any, hooks: Any, number: int, example: Example
) -> ExampleResult:
    from interlock.drivers.limits import effective_timeout_ms
    from interlock.errors import InterlockError

    contract, entry = binding.contract, binding.entry
    result = ExampleResult(server.manifest.id, contract.id, example.name or f"example {number}", OK)
    timeout = effective_timeout_ms(contract, server.manifest, entry) / 1000
    try:
        binding.bound.shape.check_inputs(example.input)
        if hooks is None:
            arguments = binding.bound.arguments(example.input)
        else:
            arguments = await hooks.arguments(binding, example.input, None, None)
        tool_result = await server.call(entry.mcp.tool_name, arguments, timeout=timeout)
        if hooks is None:
            result.value = binding.bound.extract_value(tool_result).value
        else:
            result.value = await hooks.extract_value(binding, tool_result, None)
    except InterlockError as error:
        result.outcome, result.message = (
            FAILED,
            output.sanitize(f"{error.failure.name}: {error.message}"),
        )
        return result
    except TimeoutError:
        result.outcome, result.message = FAILED, f"no response within {timeout:g} s"
        return result
    if example.has_output and result.value != example.output:
        result.outcome = DIFFERS
        result.difference = difference(example.output, result.value)
    return result


def difference(expected: Any, actual: Any) -> list[str]:
    """Return the differences between the expected and the actual value, line by line."""
    lines = list(
        difflib.unified_diff(_lines(expected), _lines(actual), "expected", "actual", lineterm="")
    )
    if len(lines) > _MAX_LINES:
        return [*lines[:_MAX_LINES], f"… {len(lines) - _MAX_LINES} more lines"]
    return lines


def _lines(value: Any) -> list[str]:
    text = value if isinstance(value, str) else json_text.dumps(
        value, indent=2, ensure_ascii=False, sort_keys=True
    )  # fmt: skip
    return [output.sanitize(line) for line in text.splitlines()]


def _print(result: ExampleResult) -> None:
    from rich.text import Text

    marks = {OK: ("✓", "green"), SKIPPED: ("–", "yellow")}
    subject = ": ".join(filter(None, (result.contract, result.example)))
    message = f": {result.message}" if result.message else ""
    title = f" {result.driver}  {subject}" if subject else f" {result.driver}"
    outcome = "" if result.outcome in (OK, SKIPPED) else f" ({result.outcome})"
    console = output.create_console()
    console.print(
        Text.assemble(marks.get(result.outcome, ("✗", "red")), f"{title}{outcome}{message}"),
        soft_wrap=True,
    )
    styles = {"-": "red", "+": "green", "@": "cyan"}
    for line in result.difference:
        console.print(Text(f"    {line}", style=styles.get(line[:1], "")), soft_wrap=True)
