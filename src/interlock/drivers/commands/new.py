"""`interlock drivers new`: connect to a server once, and write the files of a driver for it."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer
import yaml
from msgspec import Struct, field

from interlock.core.config.render import PlainDumper
from interlock.drivers.binding import check_binding
from interlock.drivers.commands.standalone_server import open_server
from interlock.drivers.commands.workspace import DriverProject
from interlock.drivers.config import DriversConfig
from interlock.drivers.standalone import named, objects
from interlock.errors import CONFIG, InterlockError
from interlock.manifests.driver_reader import MANIFEST_FILE, parse_driver
from interlock.manifests.model import (
    Auth,
    DriverManifest,
    DriverTransport,
    ImplementedContract,
    InstallStep,
    McpBinding,
    RemoteAuth,
    SecretEntry,
    SecretsInventory,
    ServerBlock,
    ServerKind,
    ToolContract,
)
from interlock.manifests.secrets_reader import INVENTORY_FILE, parse_inventory
from interlock.manifests.tool_reader import parse_contract
from interlock.primitives.text import format_count
from interlock.terminal import config_source, output

if TYPE_CHECKING:
    from interlock.drivers.commands.workspace import DriverProject


# -- Manifests as text: front matter that people can read and change, and words below it. Pure.

_WIDTH: Final = 96
_SHORT_LIST: Final = 72
_TEXT: Final = "tag:yaml.org,2002:str"


class _Dumper(PlainDumper):
    """Block style, short lists on one line."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        # Lists stand below their key, not beside it.
        super().increase_indent(flow, False)

    def represent_list(self, data: Any) -> yaml.SequenceNode:
        plain = all(isinstance(item, str | int | float | bool) or item is None for item in data)
        short = plain and sum(len(str(item)) + 2 for item in data) <= _SHORT_LIST
        flat = short and all("\n" not in str(item) for item in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flat)

    def represent_text(self, data: str) -> yaml.ScalarNode:
        lines = data.split("\n")
        if not all(line.isprintable() for line in lines):
            # Whatever cannot be seen is written as an escape.
            return self.represent_scalar(_TEXT, data, style='"')
        if len(lines) > 1 and not any(line != line.rstrip() for line in lines):
            return self.represent_scalar(_TEXT, data, style="|")
        return self.represent_scalar(_TEXT, data)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(list, _Dumper.represent_list)


def manifest_text(fields: Mapping[str, Any], body: str) -> str:
    """A whole manifest: the fields between two lines, in their order, and the words below."""
    text: str = yaml.dump(
        dict(fields), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH, indent=2
    )
    return f"---\n{text}---\n\n{body.strip()}\n"


def one_line(text: str, most: int) -> str:
    """A stranger's words on one line, without what cannot be seen, cut where they are too long."""
    words = " ".join(text.split())
    seen = "".join(character if character.isprintable() else "\ufffd" for character in words)
    return seen if len(seen) <= most else seen[: most - 1].rstrip() + "…"


def paragraphs(text: str, most: int) -> str:
    """The same with its lines kept apart."""
    lines = ["".join(character if character.isprintable() else "\ufffd" for character in line.expandtabs(4)).rstrip()
             for line in text.splitlines()]  # fmt: skip
    whole = "\n".join(lines).strip()
    return whole if len(whole) <= most else whole[: most - 1].rstrip() + "…"


# -- The front matter and the words of a new DRIVER.md and SECRETS.md, from what a person said and
# what a server listed. Pure.

_MOST_LISTED: Final = 100
"""Prompts and resources beyond these are left for a person to add."""
_PRIMARY: Final[dict[str, str]] = {
    "binary": "path",
    "npm": "package",
    "docker": "image",
    "remote": "url",
}
_WHAT: Final = {
    "binary": "a program of this machine",
    "npm": "an npm package",
    "docker": "a container",
    "remote": "a server elsewhere",
}


class DriverRequest(Struct, frozen=True):
    """What a person said of the driver that is to be made."""

    id: str
    kind: ServerKind
    ref: str
    transport: DriverTransport
    args: tuple[str, ...] = ()
    egress: tuple[str, ...] = ()
    env: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    """NAMEs; a started server gets each as a variable, a remote one the first as a bearer token."""
    pip: str = ""
    """The package from which the program of a binary server is installed."""
    port: int | None = None

    @property
    def reaches(self) -> bool:
        """Whether its server has a network."""
        return bool(self.egress) or self.kind == "remote"

    def whole_env(self) -> dict[str, str]:
        placed = {name: f"${{secrets.{name}}}" for name in self.secrets}
        return {**self.env, **({} if self.kind == "remote" else placed)}

    def install(self) -> list[dict[str, Any]]:
        if self.kind == "npm":
            return [{"method": "npm", "package": self.ref, "global": False}]
        if self.kind == "docker":
            return [{"method": "docker", "image": self.ref}]
        return [{"method": "pip", "package": self.pip}] if self.pip else []

    def manifest(self, folder: Any) -> DriverManifest:
        """The same as a manifest that implements nothing yet: enough to reach the server."""
        auth = RemoteAuth("bearer", self.secrets[0]) if self._shows_a_token else None
        return DriverManifest(
            file=folder / "DRIVER.md",
            id=self.id,
            name=title_of(self.id),
            description="",
            version="1.0.0",
            kind="mcp",
            implements=(),
            server=ServerBlock(
                kind=self.kind,
                args=self.args,
                env=self.whole_env(),
                auth=auth,
                port=self.port,
                **{_PRIMARY[self.kind]: self.ref},
            ),
            transport=self.transport,
            egress=self.egress,
            auth=Auth(state_env=self.secrets) if self.secrets else None,
            install=tuple(
                InstallStep(step["method"], {k: v for k, v in step.items() if k != "method"})
                for step in self.install()
            ),
        )

    @property
    def _shows_a_token(self) -> bool:
        return self.kind == "remote" and bool(self.secrets)

    def server_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"kind": self.kind, _PRIMARY[self.kind]: self.ref}
        if self.args:
            fields["args"] = list(self.args)
        if self.kind != "remote" and self.whole_env():
            fields["env"] = self.whole_env()
        if self._shows_a_token:
            fields["auth"] = {"type": "bearer", "secret": self.secrets[0]}
        if self.port is not None:
            fields["port"] = self.port
        return fields


class ContractEntry(Struct, frozen=True):
    """A contract that the new driver serves."""

    tool_name: str
    contract: str
    """The path of its TOOL.md, or its id."""
    version: str
    """The contract's."""
    argument_mapping: dict[str, str] = {}

    def fields(self) -> dict[str, Any]:
        mcp: dict[str, Any] = {"tool_name": self.tool_name}
        if self.argument_mapping:
            mcp["argument_mapping"] = self.argument_mapping
        mcp["result_extract"] = "$"
        return {"tool": self.contract, "version": f"^{self.version}", "metadata": {"mcp": mcp}}


def title_of(id: str) -> str:
    """`sequential-thinking-mcp` → `Sequential thinking MCP`."""
    words = id.removesuffix("-mcp").replace(".", " ").replace("-", " ")
    name = words[:1].upper() + words[1:]
    return one_line(f"{name} MCP" if id.endswith("-mcp") else name, 80)


def driver_fields(
    wish: DriverRequest,
    entries: Sequence[ContractEntry],
    *,
    described: str,
    prompts: Iterable[Mapping[str, Any]] = (),
    resources: Iterable[Mapping[str, Any]] = (),
    own_secrets: bool = True,
) -> dict[str, Any]:
    """The front matter of its DRIVER.md. `prompts` and `resources` (also templates) as listed.

    `own_secrets`: it has a SECRETS.md of its own.
    """
    fields: dict[str, Any] = {
        "name": title_of(wish.id),
        "id": wish.id,
        "description": described,
        "version": "1.0.0",
        "kind": "mcp",
        "server": wish.server_fields(),
        "transport": wish.transport,
    }
    if wish.install():
        fields["install"] = wish.install()
    if wish.secrets:
        inventory = {"ref": "./SECRETS.md"} if own_secrets else {}
        fields["auth"] = {**inventory, "state": {"env": list(wish.secrets)}}
    fields["network"] = {"egress": list(wish.egress)}
    if wish.kind != "remote":
        fields["policy_tags"] = ["self-hosted"]
    fields["implements"] = [entry.fields() for entry in entries]
    offered = [_prompt(prompt) for prompt in prompts if isinstance(prompt.get("name"), str)]
    if offered:
        fields["prompts"] = offered[:_MOST_LISTED]
    found = [made for resource in resources if (made := _resource(resource))]
    if found:
        fields["resources"] = found[:_MOST_LISTED]
    return fields


def secrets_fields(driver: str, names: Iterable[str]) -> dict[str, Any]:
    """The front matter of its SECRETS.md: names, never values."""
    return {
        "secrets": [
            {
                "slug": name.lower().replace("_", "-"),
                "name": name.replace("_", " ").capitalize(),
                "description": f"What {driver} needs as {name}.",
                "kind": "opaque",
            }
            for name in names
        ]
    }


def driver_words(wish: DriverRequest, server: str, revision: str) -> str:
    """What stands below the front matter: for people, nothing reads it."""
    where = f"{_WHAT[wish.kind]}, `{one_line(wish.ref, 200)}`"
    lines = [f"# {title_of(wish.id)}", "", f"The server is {where}."]
    if server:
        lines.append(f"It said that it is {one_line(server, 200)}, and spoke MCP {revision}.")
    lines += [
        "",
        "This file was drafted from what the server lists of itself. Before it is relied on:",
        "",
    ]
    lines += [
        "- read what the contracts in `tools/` say that calls change, and how risky they are;",
        "- add `examples` to the contracts, and run `interlock drivers test` with them;",
        "- list under `network.egress` the hosts that the server really needs, and no others.",
    ]
    return "\n".join(lines)


def contract_words(fields: Mapping[str, Any], notes: Sequence[str], driver: str) -> str:
    """The same for a contract."""
    lines = [f"# {fields['name']}", "", f"Drafted from the server of `{driver}`."]
    if notes:
        lines += ["", "Look at this:", "", *(f"- {note};" for note in notes)]
        lines[-1] = lines[-1][:-1] + "."
    return "\n".join(lines)


def _prompt(prompt: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": prompt["name"][:200], "integrate_as": "raw"}
    return {**fields, **_described(prompt)}


def _resource(resource: Mapping[str, Any]) -> dict[str, Any] | None:
    uri = resource.get("uriTemplate", resource.get("uri"))
    if not isinstance(uri, str) or not uri or len(uri) > 2000:
        return None
    return {"uri_template": uri, "integrate_as": "raw", **_described(resource)}


def _described(offered: Mapping[str, Any]) -> dict[str, str]:
    text = offered.get("description")
    shown = one_line(text, 400) if isinstance(text, str) else ""
    return {"description": shown} if shown else {}


# -- From what a server lists to drafts of contracts: their ids, schemas and effects. Pure.
#
# What a server says of itself goes into a draft that a person reads. Nothing of it is believed
# here: a draft that cannot be read as a contract is the business of whoever writes it.

MOST_ID: Final = 80
_MOST_DESCRIPTION: Final = 2000
_MOST_NAME: Final = 80
_DEEPEST: Final = 20
"""A schema that is nested deeper is left out: a manifest has a depth that it may have."""
_NO_WORDS: Final = frozenset({"mcp", "server", "servers"})
_NO_LABELS: Final = frozenset({"mcp", "api", "www"})
_SECOND_LEVEL: Final = frozenset({"co", "com", "org", "net", "ac", "gov"})
_LITERAL: Final = frozenset({"enum", "const", "default", "examples", "example"})
"""Members of a schema that hold values, not schemas."""
_NAMED: Final = frozenset(
    {"properties", "patternProperties", "definitions", "$defs", "dependentSchemas"}
)
"""Members that hold schemas by names that mean nothing here."""


class ContractDraft(Struct, frozen=True):
    """A contract for one tool of the server."""

    tool: str
    """What the server calls it."""
    id: str
    fields: dict[str, Any]
    """The front matter of its TOOL.md."""
    notes: tuple[str, ...] = ()
    """What a person should look at."""


# -- ids


def driver_id(kind: str, ref: str) -> str:
    """A driver's id by where its server comes from: `@scope/server-files@1` → `files-mcp`."""
    if kind == "remote":
        words = _host_words(ref)
    elif kind == "npm":
        scope, _, rest = ref.rpartition("/")
        words = _words(rest.partition("@")[0]) or _words(scope)
    elif kind == "docker":
        *scopes, last = ref.partition("@")[0].split("/")
        words = _words(last.partition(":")[0]) or _words(scopes[-1] if scopes else "")
    else:
        words = _words(re.sub(r"\.(?:py|js|mjs|sh|exe)$", "", ref.rpartition("/")[2]))
    return "-".join([*words, "mcp"])[-MOST_ID:].lstrip("-.") if words else "server-mcp"


def prefix_of(id: str) -> str:
    """The namespace of a driver's contracts: its id without `-mcp`."""
    return id.removesuffix("-mcp") or id


def contract_id(tool: str, prefix: str) -> str:
    """`read_file` → `files.read-file`. A name that already begins with the prefix says it once."""
    leaf = kebab(tool) or "tool"
    flat = kebab(prefix)
    if leaf.startswith(f"{flat}-"):
        leaf = leaf.removeprefix(f"{flat}-")
    return f"{prefix}.{leaf}"[:MOST_ID].rstrip(".-")


def kebab(name: str) -> str:
    """`readFile`, `read_file` → `read-file`."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
    return re.sub(r"[^a-z0-9]+", "-", apart.lower()).strip("-")


def _words(text: str) -> list[str]:
    return [word for word in kebab(text).split("-") if word and word not in _NO_WORDS]


def _host_words(url: str) -> list[str]:
    host = urlsplit(url).hostname or ""
    if not re.search(r"[a-z]", host) or host == "localhost":
        return ["local"] if host else []
    labels = host.split(".")[:-1] or [host]
    if len(labels) > 1 and labels[-1] in _SECOND_LEVEL:
        labels.pop()
    named = [label for label in labels if label not in _NO_LABELS]
    return _words(named[-1] if named else labels[-1])


# -- contracts


def draft_contracts(
    definitions: Iterable[Mapping[str, Any]],
    *,
    prefix: str,
    chosen: Mapping[str, str] | None = None,
    reaches: bool = False,
) -> list[ContractDraft]:
    """Contracts for these tools, in their order.

    `chosen`: only these, tool → id; an empty id is made up. `reaches`: the server has a network,
    which is then what a tool changes.
    """
    drafts: list[ContractDraft] = []
    taken: set[str] = set()
    for definition in definitions:
        tool = definition["name"]
        if chosen is not None and tool not in chosen:
            continue
        wanted = (chosen or {}).get(tool) or contract_id(tool, prefix)
        id, number = wanted, 2
        while id in taken:
            id, number = f"{wanted[: MOST_ID - 3]}-{number}", number + 1
        taken.add(id)
        drafts.append(draft_contract(definition, id, reaches=reaches))
    return drafts


def draft_contract(
    definition: Mapping[str, Any], id: str, *, reaches: bool = False, opened: bool = False
) -> ContractDraft:
    """A contract for one tool. `opened`: without the server's schemas, which cannot be used."""
    tool: str = definition["name"]
    notes: list[str] = []
    described = definition.get("description")
    description = paragraphs(described, _MOST_DESCRIPTION) if isinstance(described, str) else ""
    if not description:
        description = f"The tool {one_line(tool, 200)} of its server, which does not describe it."
        notes.append("its server does not describe it")
    inputs = _schema(definition.get("inputSchema"), notes, "inputs", opened=opened)
    outputs = definition.get("outputSchema")
    fields: dict[str, Any] = {
        "name": _name(definition, tool),
        "id": id,
        "description": description,
        "version": "1.0.0",
        "inputs": inputs if inputs is not None else {"type": "object"},
        "outputs": _outputs(outputs, notes, opened=opened),
        **_effect(definition.get("annotations"), notes, reaches=reaches),
    }
    return ContractDraft(tool, id, fields, tuple(notes))


def _name(definition: Mapping[str, Any], tool: str) -> str:
    hints = definition.get("annotations")
    titles = (definition.get("title"), hints.get("title") if isinstance(hints, dict) else None)
    said = next((title for title in titles if isinstance(title, str) and title.strip()), "")
    return one_line(said or kebab(tool).replace("-", " ").capitalize() or tool, _MOST_NAME)


def _schema(said: Any, notes: list[str], what: str, *, opened: bool) -> dict[str, Any] | None:
    if not isinstance(said, dict):
        return None
    if opened or _depth(said) > _DEEPEST:
        notes.append(f"the server's schema of its {what} cannot be used here: write one")
        return None
    schema: dict[str, Any] = modern(said)
    # A contract has one dialect, and an address of its own would lead out of the file.
    for word in ("$schema", "$id"):
        schema.pop(word, None)
    return schema


def _outputs(said: Any, notes: list[str], *, opened: bool) -> dict[str, Any]:
    schema = _schema(said, notes, "outputs", opened=opened)
    if schema is not None:
        return schema
    if not isinstance(said, dict):
        notes.append("its server does not say what it answers: a text is assumed")
        return {"type": "string"}
    return {"type": "object"}


def _effect(said: Any, notes: list[str], *, reaches: bool) -> dict[str, Any]:
    """What a tool says that it does, in the words of a contract."""
    hints = said if isinstance(said, dict) else {}
    if hints.get("readOnlyHint") is True:
        notes.append("its server says that it changes nothing")
        return {"idempotent": True, "mutates": [], "approval": "auto", "risk_level": 0}
    destructive = hints.get("destructiveHint")
    if destructive is None:
        notes.append("its server does not say whether it can be undone")
    return {
        "idempotent": hints.get("idempotentHint") is True,
        "mutates": ["network:*" if reaches else "workspace:*"],
        "approval": "always" if destructive is True else "on-mutate",
        "risk_level": 3 if destructive is True else 1 if destructive is False else 2,
    }


def modern(schema: Any) -> Any:
    """A schema in the words of 2020-12, where older dialects have others for the same."""
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for word, value in schema.items():
        if word in _LITERAL:
            made[word] = value
        elif word in _NAMED and isinstance(value, dict):
            made[word] = {name: modern(item) for name, item in value.items()}
        elif word == "items" and isinstance(value, list):
            made["prefixItems"] = [modern(item) for item in value]
        elif word == "additionalItems":
            if isinstance(schema.get("items"), list):
                made["items"] = modern(value)
        elif word == "dependencies" and isinstance(value, dict):
            _dependencies(value, made)
        elif isinstance(value, list):
            made[word] = [modern(item) for item in value]
        else:
            made[word] = modern(value)
    return made


def _dependencies(said: Mapping[str, Any], made: dict[str, Any]) -> None:
    names = {name: one for name, one in said.items() if isinstance(one, list)}
    schemas = {name: modern(one) for name, one in said.items() if not isinstance(one, list)}
    if names:
        made["dependentRequired"] = names
    if schemas:
        made["dependentSchemas"] = schemas


def _depth(value: Any, most: int = 64) -> int:
    if most == 0 or not isinstance(value, dict | list):
        return 1
    inside: Sequence[Any] = list(value.values()) if isinstance(value, dict) else value
    return 1 + max((_depth(item, most - 1) for item in inside), default=0)


# -- how a contract and a tool are translated


def argument_mapping(contract: Mapping[str, Any], tool: Mapping[str, Any]) -> dict[str, str]:
    """Contract input → the tool's argument, as far as their names leave no doubt.

    Both are JSON Schemas. Equal names need no word; of what is left over, one on either side is
    taken for the other.
    """
    inputs = _properties(contract)
    arguments = _properties(tool)
    left = [name for name in inputs if name not in arguments]
    wanted = [name for name in arguments if name not in inputs]
    needed = [name for name in wanted if name in (tool.get("required") or ())]
    return {left[0]: needed[0]} if len(left) == 1 and len(needed) == 1 else {}


def _properties(schema: Mapping[str, Any]) -> list[str]:
    properties = schema.get("properties")
    return list(properties) if isinstance(properties, dict) else []


# -- The files of a new driver, from what a server lists: drafted, read back, and then written.


class DriverFiles(Struct):
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
    wish: DriverRequest,
    project: DriverProject,
    folder: Path,
    chosen: dict[str, str] | None,
    *,
    tell: Callable[[str], None],
) -> DriverFiles:
    """Connect to the server once, and draft the files. Raises InterlockError."""
    manifest = wish.manifest(folder)
    tell(f"connecting to {wish.ref}")
    inventory = _inventory(wish, folder)
    async with open_server(
        manifest,
        project,
        inventory=inventory,
        may_install=True,
        progress=lambda step, of, text: tell(f"[{step}/{of}] {text}"),
        warn=output.print_note,
    ) as there:
        listed, offer = there.tools(), there.offer
        about, revision = there.server, there.peer.revision
    tell(f"{about or wish.ref}: {format_count(len(listed), 'tool')}")
    made = DriverFiles(folder, remarks=[*there.secret_notes(), *there.egress_notes()])
    _all_there(chosen, listed)
    own = _own_secrets(wish, project, folder)
    entries = [*_contracts(made, wish, project, list(listed.values()), chosen)]
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
    _read_back(made, project)
    return made


def _own_secrets(wish: DriverRequest, project: DriverProject, folder: Path) -> list[str]:
    """Those that no other inventory of the workspace lists: a secret is listed once."""
    known = project.workspace.secrets.entries
    elsewhere = {
        name
        for name, slug in project.workspace.secret_names.items()
        if known[slug].file.parent != folder.resolve()
    }
    return [name for name in wish.secrets if name not in elsewhere]


def _inventory(wish: DriverRequest, folder: Path) -> SecretsInventory:
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
            raise InterlockError(
                CONFIG, f"the server has no tool {name!r}; {output.sanitize(hint)}"
            )


def _nothing(wish: DriverRequest, made: DriverFiles) -> Exception:
    why = "; ".join(f"{tool}: {reason}" for tool, reason in made.left_out.items())
    told = f" ({output.sanitize(why)})" if why else ""
    return InterlockError(
        CONFIG, f"{wish.ref} offers no tool that a contract can be made of{told}."
    )


def _contracts(
    made: DriverFiles,
    wish: DriverRequest,
    project: DriverProject,
    listed: list[dict[str, Any]],
    chosen: dict[str, str] | None,
) -> Iterator[ContractEntry]:
    by_name = {definition["name"]: definition for definition in listed}
    drafts = draft_contracts(listed, prefix=prefix_of(wish.id), chosen=chosen, reaches=wish.reaches)
    for draft in drafts:
        known = _known(project, draft.id)
        if known is not None:
            schema = by_name[draft.tool].get("inputSchema")
            mapping = argument_mapping(known.inputs, schema if isinstance(schema, dict) else {})
            entry = ContractEntry(draft.tool, known.id, known.version, mapping)
            made.taken[known.id] = _misfits(entry, known, by_name[draft.tool])
            yield entry
            continue
        usable = _usable(draft, by_name[draft.tool], reaches=wish.reaches)
        if isinstance(usable, str):
            made.left_out[draft.tool] = usable
            continue
        place = f"tools/{usable.id}/TOOL.md"
        words = contract_words(usable.fields, usable.notes, wish.id)
        made.files[project.base_dir / place] = manifest_text(usable.fields, words)
        made.notes[usable.id] = usable.notes
        yield ContractEntry(draft.tool, f"./{place}", "1.0.0")


def _misfits(
    entry: ContractEntry, contract: ToolContract, definition: dict[str, Any]
) -> tuple[str, ...]:
    """Why a contract that was there already is not served by the tool as it is."""
    mcp = McpBinding(entry.tool_name, entry.argument_mapping)
    bound = ImplementedContract(contract.id, f"^{contract.version}", mcp=mcp)
    return check_binding(contract, bound, definition).errors


def _known(project: DriverProject, id: str) -> ToolContract | None:
    versions = project.workspace.versions(id)
    return max(versions, key=lambda contract: contract.major) if versions else None


def _usable(
    draft: ContractDraft, definition: dict[str, Any], *, reaches: bool
) -> ContractDraft | str:
    """The draft as it can be read back: if need be without the server's schemas. A sentence: why
    not even so."""
    file = Path("TOOL.md")
    if not parse_contract(manifest_text(draft.fields, ""), file).problems:
        return draft
    opened = draft_contract(definition, draft.id, reaches=reaches, opened=True)
    problems = parse_contract(manifest_text(opened.fields, ""), file).problems
    return opened if not problems else problems[0].message


def _read_back(made: DriverFiles, project: DriverProject) -> None:
    """What is to be written is what `drivers check` would accept. Raises ManifestError."""
    readers: dict[str, Any] = {
        MANIFEST_FILE: lambda text, file: parse_driver(text, file, root=project.base_dir),
        INVENTORY_FILE: parse_inventory,
    }
    for path, text in made.files.items():
        if path.name in readers:
            readers[path.name](text, path).unwrap()


def write(made: DriverFiles, force: bool) -> None:
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


_FIRST_CONFIG: Final = """\
# `interlock up` runs the drivers of this folder (.drivers). Servers can be added beside them.
drivers: {}
"""
_KINDS: Final = ("npm", "binary", "docker", "remote")
_TRANSPORTS: Final = {
    "npm": ("stdio",),
    "binary": ("stdio",),
    "docker": ("stdio",),
    "remote": ("http", "sse"),
}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET: Final = re.compile(r"[A-Z][A-Z0-9_]*")


def new(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help="npm, binary, docker or remote.", show_default=False),
    ],
    ref: Annotated[
        str,
        typer.Argument(
            metavar="REF", help="The package, program, image or URL.", show_default=False
        ),
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- ARG]...", help="What the server is started with.", show_default=False
        ),
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Default: by REF, such as files-mcp.")
    ] = None,
    transport: Annotated[
        str | None,
        typer.Option(
            "--transport", metavar="T", help="For a remote server: http (default) or sse."
        ),
    ] = None,
    tools: Annotated[
        str | None,
        typer.Option(
            "--tools",
            metavar="TOOL[:CONTRACT],...",
            help="Only these tools, under these ids: read_file:fs-read,write_file. Default: all.",
        ),
    ] = None,
    egress: Annotated[
        list[str] | None,
        typer.Option("--egress", metavar="HOST", help="A host that it may reach. May be repeated."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="NAME=VALUE", help="A variable, which is no secret."),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="NAME",
            help="A secret, by the name of the variable that has it now. A started server gets it "
            "under that name, a remote one as a bearer token.",
        ),
    ] = None,
    pip: Annotated[
        str | None,
        typer.Option(
            "--pip", metavar="PACKAGE", help="Where a binary's program is installed from."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="The folder of drivers. Default: that of the config, else .drivers.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Install the package without asking.")
    ] = False,
    config: config_source.ConfigOption = None,
) -> None:
    """Make a driver for an MCP server: connect to it once, and write what it offers as files.

    Writes DRIVER.md (and SECRETS.md) into .drivers/ID, and a contract TOOL.md for every tool into
    tools/. The server is confined to the hosts of --egress, also for this one time. What it says
    of itself is a draft: read the contracts before you rely on them.

    \b
    Examples:
      interlock drivers new npm @modelcontextprotocol/server-filesystem -- .
      interlock drivers new npm @modelcontextprotocol/server-filesystem \\
          --tools read_text_file:fs-read,write_file:fs-write -- .
      interlock drivers new binary mcp-server-time --pip mcp-server-time
      interlock drivers new remote https://mcp.example.com/mcp --secret EXAMPLE_TOKEN
    """
    from interlock.drivers.commands.access import require_consent
    from interlock.drivers.commands.workspace import project_of
    from interlock.terminal.event_loop import run

    wish = _wish(kind, ref, args, id, transport, egress, env, secret, pip)
    chosen = _chosen(tools)
    source = config_source.find_source_or_none(config)
    loaded, base_dir = config_source.load_or_default(source)
    folders = out if out is not None else base_dir / loaded.section(DriversConfig).folders[0]
    folder = folders.absolute() / wish.id
    if out is not None:
        base_dir = folders.absolute().parent
    project = project_of(loaded, base_dir)
    _must_be_new(folder, project, force)
    manifest = wish.manifest(folder)
    if manifest.install and not project.settings.allow_install:
        require_consent(manifest, yes=yes)
    with _shown() as tell:
        made = run(make(wish, project, folder, chosen, tell=tell))
    if source is None and out is None:
        # Without a config `interlock up` would not know that there is something to run.
        from interlock.core.config import DEFAULT_NAME

        made.files.setdefault(base_dir / DEFAULT_NAME, _FIRST_CONFIG)
    write(made, force)
    _told(made, project)
    # Everything was read before it was written; what only shows beside other files, shows now.
    project_of(loaded, base_dir).manifest(wish.id)


# -- what is wished for


def _wish(
    kind: str,
    ref: str,
    args: list[str] | None,
    id: str | None,
    transport: str | None,
    egress: list[str] | None,
    env: list[str] | None,
    secret: list[str] | None,
    pip: str | None,
) -> DriverRequest:
    from urllib.parse import urlsplit

    from interlock.manifests.schemas import DRIVER

    if kind not in _KINDS:
        raise typer.BadParameter(f"{kind!r} is no kind of server; write {', '.join(_KINDS)}.")
    given = transport or _TRANSPORTS[kind][0]
    if given not in _TRANSPORTS[kind]:
        known = " or ".join(_TRANSPORTS[kind])
        raise typer.BadParameter(f"a {kind} server is spoken to over {known}, not {given}.")
    if kind == "remote" and (args or env):
        raise typer.BadParameter(
            "a remote server is not started: it takes no arguments and no --env."
        )
    if pip and kind != "binary":
        raise typer.BadParameter("--pip is for a binary: the others come from elsewhere.")
    hosts = list(egress or ())
    if kind == "remote" and not hosts:
        # Without its own host it could not be reached at all.
        hosts = [urlsplit(ref).netloc.rpartition("@")[2]]
    variables = dict(_variable(variable) for variable in env or ())
    for name in secret or ():
        if not _SECRET.fullmatch(name):
            raise typer.BadParameter(
                f"--secret wants a name in capital letters, and {name!r} is none."
            )
    chosen = id or driver_id(kind, ref)
    declared = DRIVER["properties"]["id"]
    if not re.fullmatch(declared["pattern"], chosen):
        raise typer.BadParameter(f"{chosen!r} is no id of a driver; {declared['description']}.")
    return DriverRequest(
        id=chosen,
        kind=kind,  # type: ignore[arg-type]
        ref=ref,
        transport=given,  # type: ignore[arg-type]
        args=tuple(args or ()),
        egress=tuple(hosts),
        env=variables,
        secrets=tuple(dict.fromkeys(secret or ())),
        pip=pip or "",
    )


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not _VARIABLE.fullmatch(name):
        raise typer.BadParameter(f"--env wants NAME=VALUE, and {name!r} is not that.")
    return name, value


def _chosen(tools: str | None) -> dict[str, str] | None:
    """`read_file:fs-read,write_file` → tool → contract."""
    from interlock.manifests.schemas import TOOL

    if tools is None:
        return None
    declared = TOOL["properties"]["id"]
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in tools.split(","))):
        name, _, contract = part.partition(":")
        if not name:
            raise typer.BadParameter(
                f"--tools wants TOOL or TOOL:CONTRACT, and {part!r} is neither."
            )
        if contract and not re.fullmatch(declared["pattern"], contract):
            raise typer.BadParameter(
                f"{contract!r} is no id of a contract; {declared['description']}."
            )
        found[name] = contract
    return found


def _must_be_new(folder: Path, project: DriverProject, force: bool) -> None:
    from interlock.errors import CONFIG, InterlockError

    path = folder / "DRIVER.md"
    if path.exists() and not force:
        raise InterlockError(
            CONFIG, f"{project.shown(path)} is there already; choose another --id, or say --force."
        )


def _told(made: DriverFiles, project: DriverProject) -> None:
    for path in sorted(made.files):
        print(project.shown(path))
    for sentence in made.remarks:
        output.print_note(sentence)
    for id, misfits in made.taken.items():
        output.print_note(f"{id} is a contract that was there already; the driver serves it.")
        for sentence in misfits:
            output.print_note(f"Warning: it does not fit yet: {output.sanitize(sentence)}")
    for tool, why in made.left_out.items():
        output.print_note(
            f"Warning: {output.sanitize(tool)} has no contract: {output.sanitize(why)}"
        )
    for id, notes in made.notes.items():
        if notes:
            output.print_note(f"{id}: {output.sanitize('; '.join(notes))}")
    example = next(iter(made.notes), "") or next(iter(made.taken))
    output.print_note(
        f"Look at them, then: interlock drivers check --live && interlock drivers explain {example}"
    )


@contextmanager
def _shown() -> Iterator[Callable[[str], None]]:
    """What goes on, on a terminal in one line that changes, elsewhere a line each."""
    if not sys.stderr.isatty():
        yield lambda text: output.print_note(output.sanitize(text))
        return
    from rich.text import Text

    with output.create_console(stderr=True).status("") as status:
        yield lambda text: status.update(Text(output.sanitize(text)))
