"""The files of a new driver, from what a server lists: drafted, read back, and then written."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from interlock.catalog.drivers.binding import check_binding
from interlock.cli import say
from interlock.cli.driver_declaring import (
    Entry,
    Wish,
    contract_words,
    driver_fields,
    driver_words,
    secrets_fields,
)
from interlock.cli.driver_drafting import (
    Draft,
    argument_mapping,
    draft_contract,
    draft_contracts,
    prefix_of,
)
from interlock.cli.driver_reach import named, objects, visit
from interlock.cli.driver_texts import manifest_text, one_line
from interlock.cli.driver_workspace import Desk
from interlock.errors import CONFIG, InterlockError
from interlock.manifests.driver import Implements, McpBinding
from interlock.manifests.driver_reader import MANIFEST_FILE, parse_driver
from interlock.manifests.secret import SecretEntry, SecretsInventory
from interlock.manifests.secrets_reader import INVENTORY_FILE, parse_inventory
from interlock.manifests.tool import ToolContract
from interlock.manifests.tool_reader import parse_contract


class Made(Struct):
    """The files of a new driver, before they are written."""

    folder: Path
    files: dict[Path, str] = field(default_factory=dict)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By contract: what a person should look at."""
    taken: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Contracts that were there already, and why the server's tool does not fit them yet."""
    remarks: list[str] = field(default_factory=list)
    """What happened while the server was asked."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Tools without a contract, and why."""


async def make(
    wish: Wish,
    desk: Desk,
    folder: Path,
    chosen: dict[str, str] | None,
    *,
    tell: Callable[[str], None],
) -> Made:
    """Connect to the server once, and draft the files. Raises InterlockError."""
    manifest = wish.manifest(folder)
    tell(f"connecting to {wish.ref}")
    inventory = _inventory(wish, folder)
    async with visit(
        manifest,
        desk,
        inventory=inventory,
        may_install=True,
        progress=lambda step, of, text: tell(f"[{step}/{of}] {text}"),
        warn=say.note,
    ) as there:
        listed, offer = there.tools(), there.offer
        about, revision = there.server, there.peer.revision
    tell(f"{about or wish.ref}: {len(listed)} tools")
    made = Made(folder, remarks=[*there.given(), *there.in_vain()])
    _all_there(chosen, listed)
    own = _own_secrets(wish, desk, folder)
    entries = [*_contracts(made, wish, desk, list(listed.values()), chosen)]
    if not entries:
        raise _nothing(wish, made)
    described = one_line(f"{about or wish.ref}, an MCP server ({wish.kind}).", 2000)
    fields = driver_fields(
        wish,
        entries,
        described=described,
        prompts=named(offer.prompts),
        resources=objects((*offer.resources, *offer.templates)),
        own_secrets=bool(own),
    )
    made.files[folder / "DRIVER.md"] = manifest_text(fields, driver_words(wish, about, revision))
    if own:
        words = f"# Secrets of {fields['name']}\n\nNames only: values stay where they are."
        made.files[folder / "SECRETS.md"] = manifest_text(secrets_fields(wish.id, own), words)
    _read_back(made, desk)
    return made


def _own_secrets(wish: Wish, desk: Desk, folder: Path) -> list[str]:
    """Those that no other inventory of the workspace lists: a secret is listed once."""
    known = desk.workspace.secrets.entries
    elsewhere = {
        name
        for name, slug in desk.workspace.secret_names.items()
        if known[slug].file.parent != folder.resolve()
    }
    return [name for name in wish.secrets if name not in elsewhere]


def _inventory(wish: Wish, folder: Path) -> SecretsInventory:
    entries = {}
    for name in wish.secrets:
        slug = name.lower().replace("_", "-")
        entries[slug] = SecretEntry(slug, name, name, folder / "SECRETS.md", env=name)
    return SecretsInventory(entries)


def _all_there(chosen: dict[str, str] | None, listed: dict[str, Any]) -> None:
    for name in chosen or ():
        if name not in listed:
            close = difflib.get_close_matches(name, listed, n=1)
            hint = (
                f"did you mean {close[0]!r}?" if close else f"it has {', '.join(listed) or 'none'}"
            )
            raise InterlockError(CONFIG, f"the server has no tool {name!r}; {say.printable(hint)}")


def _nothing(wish: Wish, made: Made) -> Exception:
    why = "; ".join(f"{tool}: {reason}" for tool, reason in made.left_out.items())
    told = f" ({say.printable(why)})" if why else ""
    return InterlockError(
        CONFIG, f"{wish.ref} offers no tool that a contract can be made of{told}."
    )


def _contracts(
    made: Made,
    wish: Wish,
    desk: Desk,
    listed: list[dict[str, Any]],
    chosen: dict[str, str] | None,
) -> Iterator[Entry]:
    by_name = {one["name"]: one for one in listed}
    drafts = draft_contracts(listed, prefix=prefix_of(wish.id), chosen=chosen, reaches=wish.reaches)
    for draft in drafts:
        known = _known(desk, draft.id)
        if known is not None:
            schema = by_name[draft.tool].get("inputSchema")
            mapping = argument_mapping(known.inputs, schema if isinstance(schema, dict) else {})
            entry = Entry(draft.tool, known.id, known.version, mapping)
            made.taken[known.id] = _misfits(entry, known, by_name[draft.tool])
            yield entry
            continue
        usable = _usable(draft, by_name[draft.tool], reaches=wish.reaches)
        if isinstance(usable, str):
            made.left_out[draft.tool] = usable
            continue
        place = f"tools/{usable.id}/TOOL.md"
        words = contract_words(usable.fields, usable.notes, wish.id)
        made.files[desk.base_dir / place] = manifest_text(usable.fields, words)
        made.notes[usable.id] = usable.notes
        yield Entry(draft.tool, f"./{place}", "1.0.0")


def _misfits(entry: Entry, contract: ToolContract, definition: dict[str, Any]) -> tuple[str, ...]:
    """Why a contract that was there already is not served by the tool as it is."""
    mcp = McpBinding(entry.tool_name, entry.argument_mapping)
    bound = Implements(contract.id, f"^{contract.version}", mcp=mcp)
    return check_binding(contract, bound, definition).errors


def _known(desk: Desk, id: str) -> ToolContract | None:
    versions = desk.workspace.versions(id)
    return max(versions, key=lambda one: one.major) if versions else None


def _usable(draft: Draft, definition: dict[str, Any], *, reaches: bool) -> Draft | str:
    """The draft as it can be read back: if need be without the server's schemas. A sentence: why
    not even so."""
    file = Path("TOOL.md")
    if not parse_contract(manifest_text(draft.fields, ""), file).problems:
        return draft
    opened = draft_contract(definition, draft.id, reaches=reaches, opened=True)
    problems = parse_contract(manifest_text(opened.fields, ""), file).problems
    return opened if not problems else problems[0].message


def _read_back(made: Made, desk: Desk) -> None:
    """What is to be written is what `drivers check` would accept. Raises ManifestError."""
    readers: dict[str, Any] = {
        MANIFEST_FILE: lambda text, file: parse_driver(text, file, root=desk.base_dir),
        INVENTORY_FILE: parse_inventory,
    }
    for path, text in made.files.items():
        if path.name in readers:
            readers[path.name](text, path).unwrap()


def write(made: Made, force: bool) -> None:
    there = [path for path in made.files if path.exists()]
    if there and not force:
        names = ", ".join(str(path) for path in there)
        raise InterlockError(
            CONFIG, f"nothing was written: {names} is there already; --force replaces it."
        )
    for path, text in made.files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            beside.write_text(text, encoding="utf-8")
            os.replace(beside, path)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InterlockError(CONFIG, f"{path} cannot be written: {reason}.") from None
