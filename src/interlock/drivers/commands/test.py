"""`interlock drivers test`: a contract's examples against the drivers that serve it, by their real
servers and the real translation."""

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

_MOST_LINES: Final = 40
_NO_EXAMPLES: Final = "it has no examples"
OK, DIFFERS, FAILED, SKIPPED, UNREACHABLE = "ok", "differs", "failed", "skipped", "unreachable"


class ExampleResult(Struct):
    """One example at one driver."""

    driver: str
    contract: str
    example: str
    outcome: str
    told: str = ""
    """Why it failed or was skipped."""
    difference: list[str] = field(default_factory=list)
    value: Any = None


def try_examples(
    name: Annotated[
        str,
        typer.Argument(metavar="ID|TOOL", help="A driver, or a contract.", show_default=False),
    ],
    changes: Annotated[
        bool,
        typer.Option("--changes", help="Also examples of contracts that change something."),
    ] = False,
    json: Json = False,
    config: config_source.ConfigOption = None,
) -> None:
    """Run the examples of contracts against the real servers of drivers, and report differences.

    Of a driver every contract that it serves is tried, of a contract every driver that serves it:
    examples hold for all of them. Exit code 1 when one does not, or when nothing was tried at all;
    4 when a server cannot be reached.

    \b
    Examples:
      interlock drivers test filesystem-mcp
      interlock drivers test time.now --json
    """
    from interlock.drivers.commands.workspace import open_project
    from interlock.terminal.event_loop import run

    project = open_project(config)
    found = run(_try_all(project, name, changes=changes))
    if json:
        output.print_json(found)
    else:
        for result in found:
            _print(result)
    outcomes = {result.outcome for result in found}
    if outcomes & {DIFFERS, FAILED}:
        raise typer.Exit(output.FAILED)
    if UNREACHABLE in outcomes:
        raise typer.Exit(output.UNREACHABLE)
    if OK not in outcomes:
        # Whoever relies on this in CI must not take silence for a yes.
        output.print_problem(f"nothing of {output.sanitize(name)} was tried: {_missing(found)}.")
        raise typer.Exit(output.FAILED)


def _missing(found: list[ExampleResult]) -> str:
    """What to do so that something is tried."""
    if not found:
        return "no driver serves it"
    if all(result.told == _NO_EXAMPLES for result in found):
        return "write examples into its TOOL.md (name, input, output)"
    return "say --changes to try what changes something, or write examples into a TOOL.md"


async def _try_all(project: DriverProject, name: str, *, changes: bool) -> list[ExampleResult]:
    found: list[ExampleResult] = []
    if project.is_contract(name):
        contract = project.contract(name)
        keys = project.workspace.serving.get(contract.key, ())
        if not keys:
            output.print_note(f"no driver serves {contract.id}.")
        for key in keys:
            manifest = project.workspace.drivers[key]
            chosen = [b for b in project.workspace.bindings[key] if b.contract.key == contract.key]
            found += await _try_driver(project, manifest, chosen, changes=changes)
        return found
    manifest = project.manifest(name)
    bindings = project.workspace.bindings[manifest.key]
    return await _try_driver(project, manifest, list(bindings), changes=changes)


async def _try_driver(
    project: DriverProject, manifest: DriverManifest, bindings: list[EntryBinding], *, changes: bool
) -> list[ExampleResult]:
    from interlock.drivers.binding import check_listed
    from interlock.drivers.commands.standalone_server import connection_error_text, open_server
    from interlock.drivers.standalone import open_hooks
    from interlock.errors import InterlockError

    found: list[ExampleResult] = []
    waiting: list[EntryBinding] = []
    for binding in bindings:
        contract = binding.contract
        if not contract.examples:
            found.append(ExampleResult(manifest.id, contract.id, "", SKIPPED, _NO_EXAMPLES))
        elif contract.mutates and not changes:
            why = "it changes something; --changes tries it all the same"
            found.append(ExampleResult(manifest.id, contract.id, "", SKIPPED, why))
        else:
            waiting.append(binding)
    if not waiting:
        return found
    try:
        async with open_server(manifest, project, warn=output.print_note) as there:
            tools = there.tools()
            async with open_hooks(manifest, project, warn=say.note) as hooks:
                for binding in waiting:
                    wrong = check_listed(binding.contract, binding.entry, tools).errors
                    if wrong:
                        told = say.printable(" ".join(wrong))
                        found.append(
                            ExampleResult(manifest.id, binding.contract.id, "", FAILED, told)
                        )
                        continue
                    found += await _try_examples(there, binding, hooks)
        for sentence in (*there.secret_notes(), *there.egress_notes()):
            say.note(sentence)
    except InterlockError as error:
        found.append(
            ExampleResult(
                manifest.id, "", "", UNREACHABLE, connection_error_text(manifest.id, error)
            )
        )
    return found


async def _try_examples(
    there: StandaloneServer, binding: EntryBinding, hooks: Any
) -> list[ExampleResult]:
    from interlock.drivers.driver import DriverBinding
    from interlock.drivers.translation import BoundEntry

    transforms = {} if hooks is None else hooks.transforms
    served = DriverBinding(
        binding.contract,
        binding.entry,
        BoundEntry(binding.contract, binding.entry, transforms=transforms),
    )
    return [
        await _try_example(there, served, hooks, number, example)
        for number, example in enumerate(binding.contract.examples, 1)
    ]


async def _try_example(
    there: StandaloneServer, served: Any, hooks: Any, number: int, example: Example
) -> ExampleResult:
    from interlock.drivers.limits import effective_timeout_ms
    from interlock.errors import InterlockError

    contract, entry = served.contract, served.entry
    one = ExampleResult(there.manifest.id, contract.id, example.name or f"example {number}", OK)
    timeout = effective_timeout_ms(contract, there.manifest, entry) / 1000
    try:
        served.bound.shape.check_inputs(example.input)
        if hooks is None:
            arguments = served.bound.arguments(example.input)
        else:
            arguments = await hooks.arguments(served, example.input, None, None)
        result = await there.call(entry.mcp.tool_name, arguments, timeout=timeout)
        if hooks is None:
            one.value = served.bound.extract_value(result).value
        else:
            one.value = await hooks.extract_value(served, result, None)
    except InterlockError as error:
        one.outcome, one.told = (
            FAILED,
            output.sanitize(f"{error.failure.name}: {error.message}"),
        )
        return one
    except TimeoutError:
        one.outcome, one.told = FAILED, f"it did not answer within {timeout:g} s"
        return one
    if example.has_output and one.value != example.output:
        one.outcome = DIFFERS
        one.difference = difference(example.output, one.value)
    return one


def difference(expected: Any, got: Any) -> list[str]:
    """What is other than the example says, line by line."""
    lines = list(
        difflib.unified_diff(
            _lines(expected), _lines(got), "as the example says", "as it is", lineterm=""
        )
    )
    if len(lines) > _MOST_LINES:
        return [*lines[:_MOST_LINES], f"… {len(lines) - _MOST_LINES} lines more"]
    return lines


def _lines(value: Any) -> list[str]:
    text = value if isinstance(value, str) else json_text.dumps(
        value, indent=2, ensure_ascii=False, sort_keys=True
    )  # fmt: skip
    return [output.sanitize(line) for line in text.splitlines()]


def _print(result: ExampleResult) -> None:
    from rich.text import Text

    marks = {OK: ("✓", "green"), SKIPPED: ("–", "yellow")}
    what = ": ".join(filter(None, (result.contract, result.example)))
    told = f": {result.told}" if result.told else ""
    shown = f" {result.driver}  {what}" if what else f" {result.driver}"
    outcome = "" if result.outcome in (OK, SKIPPED) else f" ({result.outcome})"
    console = say.console()
    console.print(
        Text.assemble(marks.get(result.outcome, ("✗", "red")), f"{shown}{outcome}{told}"),
        soft_wrap=True,
    )
    styles = {"-": "red", "+": "green", "@": "cyan"}
    for line in result.difference:
        console.print(Text(f"    {line}", style=styles.get(line[:1], "")), soft_wrap=True)
