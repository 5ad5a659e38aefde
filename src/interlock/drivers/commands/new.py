"""`interlock drivers new`: connect to a server once and write the files of a driver for it."""

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
from interlock.drivers.standalone import decode_objects, named_definitions
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


# -- Manifests as text: readable front matter with a body below. Pure.

_YAML_WIDTH: Final = 96
_MAX_INLINE_LIST: Final = 72
_YAML_STRING: Final = "tag:yaml.org,2002:str"


class _Dumper(PlainDumper):
    """A YAML dumper with block style and short lists on one line."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        # Lists are indented below their key.
        super().increase_indent(flow, False)

    def represent_list(self, data: Any) -> yaml.SequenceNode:
        plain = all(isinstance(item, str | int | float | bool) or item is None for item in data)
        short = plain and sum(len(str(item)) + 2 for item in data) <= _MAX_INLINE_LIST
        flat = short and all("\n" not in str(item) for item in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flat)

    def represent_text(self, data: str) -> yaml.ScalarNode:
        lines = data.split("\n")
        if not all(line.isprintable() for line in lines):
            # Non-printable characters are written as escapes.
            return self.represent_scalar(_YAML_STRING, data, style='"')
        if len(lines) > 1 and not any(line != line.rstrip() for line in lines):
            return self.represent_scalar(_YAML_STRING, data, style="|")
        return self.represent_scalar(_YAML_STRING, data)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(list, _Dumper.represent_list)


def manifest_text(fields: Mapping[str, Any], body: str) -> str:
    """Return a manifest: the front matter with its fields in order, and the body."""
    text: str = yaml.dump(
        dict(fields),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=_YAML_WIDTH,
        indent=2,
    )
    return f"---\n{text}---\n\n{body.strip()}\n"


def one_line(text: str, limit: int) -> str:
    """Return untrusted text as one printable line of limited length."""
    line = " ".join(text.split())
    printable = "".join(character if character.isprintable() else "\ufffd" for character in line)
    return printable if len(printable) <= limit else printable[: limit - 1].rstrip() + "…"


def paragraphs(text: str, limit: int) -> str:
    """Return untrusted text as printable lines of limited length."""
    lines = [
        "".join(
            character if character.isprintable() else "\ufffd" for character in line.expandtabs(4)
        ).rstrip()
        for line in text.splitlines()
    ]
    joined = "\n".join(lines).strip()
    return joined if len(joined) <= limit else joined[: limit - 1].rstrip() + "…"


# -- The front matter and body of a new DRIVER.md and SECRETS.md, from the request and the server's
# lists. Pure.

_MAX_LISTED: Final = 100
"""Maximum number of prompts and resources. More must be added by hand."""
_REFERENCE_FIELDS: Final[dict[str, str]] = {
    "binary": "path",
    "npm": "package",
    "docker": "image",
    "remote": "url",
}
_KIND_LABELS: Final = {
    "binary": "a local program",
    "npm": "an npm package",
    "docker": "a container",
    "remote": "a remote server",
}


class DriverRequest(Struct, frozen=True):
    """The request for a new driver."""

    id: str
    kind: ServerKind
    ref: str
    transport: DriverTransport
    args: tuple[str, ...] = ()
    egress: tuple[str, ...] = ()
    env: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    """Names of secrets. A started server gets each as a variable, a remote server the first as a
    bearer token."""
    pip: str = ""
    """The package that contains the program of a binary server."""
    port: int | None = None

    @property
    def has_network(self) -> bool:
        """True if the server has network access."""
        return bool(self.egress) or self.kind == "remote"

    def full_env(self) -> dict[str, str]:
        locate_problems = {name: f"${{secrets.{name}}}" for name in self.secrets}
        return {**self.env, **({} if self.kind == "remote" else locate_problems)}

    def install(self) -> list[dict[str, Any]]:
        if self.kind == "npm":
            return [{"method": "npm", "package": self.ref, "global": False}]
        if self.kind == "docker":
            return [{"method": "docker", "image": self.ref}]
        return [{"method": "pip", "package": self.pip}] if self.pip else []

    def manifest(self, folder: Any) -> DriverManifest:
        """Return a manifest without contracts, which is enough to connect to the server."""
        auth = RemoteAuth("bearer", self.secrets[0]) if self._sends_token else None
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
                env=self.full_env(),
                auth=auth,
                port=self.port,
                **{_REFERENCE_FIELDS[self.kind]: self.ref},
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
    def _sends_token(self) -> bool:
        return self.kind == "remote" and bool(self.secrets)

    def server_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"kind": self.kind, _REFERENCE_FIELDS[self.kind]: self.ref}
        if self.args:
            fields["args"] = list(self.args)
        if self.kind != "remote" and self.full_env():
            fields["env"] = self.full_env()
        if self._sends_token:
            fields["auth"] = {"type": "bearer", "secret": self.secrets[0]}
        if self.port is not None:
            fields["port"] = self.port
        return fields


class ContractEntry(Struct, frozen=True):
    """A contract entry of the new driver."""

    tool_name: str
    contract: str
    """Path of the TOOL.md, or id of the contract."""
    version: str
    """Version of the contract."""
    argument_mapping: dict[str, str] = {}

    def fields(self) -> dict[str, Any]:
        mcp: dict[str, Any] = {"tool_name": self.tool_name}
        if self.argument_mapping:
            mcp["argument_mapping"] = self.argument_mapping
        mcp["result_extract"] = "$"
        return {"tool": self.contract, "version": f"^{self.version}", "metadata": {"mcp": mcp}}


def title_of(id: str) -> str:
    """Return the title of a driver: `sequential-thinking-mcp` → `Sequential thinking MCP`."""
    words = id.removesuffix("-mcp").replace(".", " ").replace("-", " ")
    name = words[:1].upper() + words[1:]
    return one_line(f"{name} MCP" if id.endswith("-mcp") else name, 80)


def driver_fields(
    request: DriverRequest,
    entries: Sequence[ContractEntry],
    *,
    description_text: str,
    prompts: Iterable[Mapping[str, Any]] = (),
    resources: Iterable[Mapping[str, Any]] = (),
    own_secrets: bool = True,
) -> dict[str, Any]:
    """Return the front matter of a DRIVER.md.

    Args:
        prompts: the prompts that the server lists.
        resources: the resources and templates that the server lists.
        own_secrets: the driver has its own SECRETS.md.
    """
    fields: dict[str, Any] = {
        "name": title_of(request.id),
        "id": request.id,
        "description": description_text,
        "version": "1.0.0",
        "kind": "mcp",
        "server": request.server_fields(),
        "transport": request.transport,
    }
    if request.install():
        fields["install"] = request.install()
    if request.secrets:
        inventory = {"ref": "./SECRETS.md"} if own_secrets else {}
        fields["auth"] = {**inventory, "state": {"env": list(request.secrets)}}
    fields["network"] = {"egress": list(request.egress)}
    if request.kind != "remote":
        fields["policy_tags"] = ["self-hosted"]
    fields["implements"] = [entry.fields() for entry in entries]
    declared_prompts = [
        _prompt_entry(prompt) for prompt in prompts if isinstance(prompt.get("name"), str)
    ]
    if declared_prompts:
        fields["prompts"] = declared_prompts[:_MAX_LISTED]
    declared_resources = [entry for resource in resources if (entry := _resource_entry(resource))]
    if declared_resources:
        fields["resources"] = declared_resources[:_MAX_LISTED]
    return fields


def secrets_fields(driver: str, names: Iterable[str]) -> dict[str, Any]:
    """Return the front matter of a SECRETS.md: names, never values."""
    return {
        "secrets": [
            {
                "slug": name.lower().replace("_", "-"),
                "name": name.replace("_", " ").capitalize(),
                "description": f"The value of {name} for {driver}.",
                "kind": "opaque",
            }
            for name in names
        ]
    }


def driver_body(request: DriverRequest, server: str, revision: str) -> str:
    """Return the body of a DRIVER.md, which is only for people."""
    location = f"{_KIND_LABELS[request.kind]}, `{one_line(request.ref, 200)}`"
    lines = [f"# {title_of(request.id)}", "", f"The server is {location}."]
    if server:
        lines.append(f"It reports itself as {one_line(server, 200)} and uses MCP {revision}.")
    lines += [
        "",
        "This file is a draft, made from what the server declares. Before you use it:",
        "",
    ]
    lines += [
        "- check the effects and risk levels that the contracts in `tools/` declare;",
        "- add `examples` to the contracts and run `interlock drivers test`;",
        "- list under `network.egress` only the hosts that the server needs.",
    ]
    return "\n".join(lines)


def contract_body(fields: Mapping[str, Any], notes: Sequence[str], driver: str) -> str:
    """Return the body of a TOOL.md."""
    lines = [f"# {fields['name']}", "", f"A draft, made from the server of `{driver}`."]
    if notes:
        lines += ["", "Check:", "", *(f"- {note};" for note in notes)]
        lines[-1] = lines[-1][:-1] + "."
    return "\n".join(lines)


def _prompt_entry(prompt: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": prompt["name"][:200], "integrate_as": "raw"}
    return {**fields, **_description_field(prompt)}


def _resource_entry(resource: Mapping[str, Any]) -> dict[str, Any] | None:
    uri = resource.get("uriTemplate", resource.get("uri"))
    if not isinstance(uri, str) or not uri or len(uri) > 2000:
        return None
    return {"uri_template": uri, "integrate_as": "raw", **_description_field(resource)}


def _description_field(offered: Mapping[str, Any]) -> dict[str, str]:
    text = offered.get("description")
    short_text = one_line(text, 400) if isinstance(text, str) else ""
    return {"description": short_text} if short_text else {}


# -- Drafts of contracts from the server's tools: ids, schemas and effects. Pure.
#
# The declarations of a server are untrusted. They go into a draft that a person reads.

MAX_ID_CHARACTERS: Final = 80
_MAX_DESCRIPTION_CHARACTERS: Final = 2000
_MAX_NAME_CHARACTERS: Final = 80
_MAX_SCHEMA_DEPTH: Final = 20
"""Schemas that are nested deeper are omitted, because a manifest has a limited depth."""
_IGNORED_WORDS: Final = frozenset({"mcp", "server", "servers"})
_IGNORED_LABELS: Final = frozenset({"mcp", "api", "www"})
_SECOND_LEVEL: Final = frozenset({"co", "com", "org", "net", "ac", "gov"})
_VALUE_KEYWORDS: Final = frozenset({"enum", "const", "default", "examples", "example"})
"""Keywords that contain values, not schemas."""
_SCHEMA_MAP_KEYWORDS: Final = frozenset(
    {"properties", "patternProperties", "definitions", "$defs", "dependentSchemas"}
)
"""Keywords that contain schemas by arbitrary names."""


class ContractDraft(Struct, frozen=True):
    """A draft of a contract for one tool of the server."""

    tool: str
    """The server's name of the tool."""
    id: str
    fields: dict[str, Any]
    """Front matter of the TOOL.md."""
    notes: tuple[str, ...] = ()
    """Notes that a person should check."""


# -- ids


def driver_id(kind: str, ref: str) -> str:
    """Return the id of a driver by the reference of its server: `@scope/server-files@1` →
    `files-mcp`."""
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
    return "-".join([*words, "mcp"])[-MAX_ID_CHARACTERS:].lstrip("-.") if words else "server-mcp"


def prefix_of(id: str) -> str:
    """Return the namespace of a driver's contracts: its id without `-mcp`."""
    return id.removesuffix("-mcp") or id


def contract_id(tool: str, prefix: str) -> str:
    """Return the id of a contract: `read_file` → `files.read-file`. A prefix in the tool's name is
    not repeated."""
    leaf = kebab(tool) or "tool"
    flat = kebab(prefix)
    if leaf.startswith(f"{flat}-"):
        leaf = leaf.removeprefix(f"{flat}-")
    return f"{prefix}.{leaf}"[:MAX_ID_CHARACTERS].rstrip(".-")


def kebab(name: str) -> str:
    """Convert a name to kebab case: `readFile`, `read_file` → `read-file`."""
    separated = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
    return re.sub(r"[^a-z0-9]+", "-", separated.lower()).strip("-")


def _words(text: str) -> list[str]:
    return [word for word in kebab(text).split("-") if word and word not in _IGNORED_WORDS]


def _host_words(url: str) -> list[str]:
    host = urlsplit(url).hostname or ""
    if not re.search(r"[a-z]", host) or host == "localhost":
        return ["local"] if host else []
    labels = host.split(".")[:-1] or [host]
    if len(labels) > 1 and labels[-1] in _SECOND_LEVEL:
        labels.pop()
    significant = [label for label in labels if label not in _IGNORED_LABELS]
    return _words(significant[-1] if significant else labels[-1])


# -- contracts


def draft_contracts(
    definitions: Iterable[Mapping[str, Any]],
    *,
    prefix: str,
    chosen: Mapping[str, str] | None = None,
    has_network: bool = False,
) -> list[ContractDraft]:
    """Return contract drafts for tools, in their order.

    Args:
        chosen: draft only these tools: tool → id. An empty id is generated.
        reaches: the server has network access, which is then what a tool changes.
    """
    drafts: list[ContractDraft] = []
    used_ids: set[str] = set()
    for definition in definitions:
        tool = definition["name"]
        if chosen is not None and tool not in chosen:
            continue
        base_id = (chosen or {}).get(tool) or contract_id(tool, prefix)
        id, number = base_id, 2
        while id in used_ids:
            id, number = f"{base_id[: MAX_ID_CHARACTERS - 3]}-{number}", number + 1
        used_ids.add(id)
        drafts.append(draft_contract(definition, id, has_network=has_network))
    return drafts


def draft_contract(
    definition: Mapping[str, Any],
    id: str,
    *,
    has_network: bool = False,
    without_schemas: bool = False,
) -> ContractDraft:
    """Return a contract draft for one tool.

    Args:
        opened: omit the server's schemas because they cannot be used.
    """
    tool: str = definition["name"]
    notes: list[str] = []
    description_text = definition.get("description")
    description = (
        paragraphs(description_text, _MAX_DESCRIPTION_CHARACTERS)
        if isinstance(description_text, str)
        else ""
    )
    if not description:
        description = f"The tool {one_line(tool, 200)}. The server has no description of it."
        notes.append("the server does not describe the tool")
    inputs = _schema(
        definition.get("inputSchema"), notes, "inputs", without_schemas=without_schemas
    )
    outputs = definition.get("outputSchema")
    fields: dict[str, Any] = {
        "name": _name(definition, tool),
        "id": id,
        "description": description,
        "version": "1.0.0",
        "inputs": inputs if inputs is not None else {"type": "object"},
        "outputs": _outputs(outputs, notes, without_schemas=without_schemas),
        **_effect(definition.get("annotations"), notes, has_network=has_network),
    }
    return ContractDraft(tool, id, fields, tuple(notes))


def _name(definition: Mapping[str, Any], tool: str) -> str:
    hints = definition.get("annotations")
    titles = (definition.get("title"), hints.get("title") if isinstance(hints, dict) else None)
    declared = next((title for title in titles if isinstance(title, str) and title.strip()), "")
    return one_line(
        declared or kebab(tool).replace("-", " ").capitalize() or tool, _MAX_NAME_CHARACTERS
    )


def _schema(
    declared: Any, notes: list[str], subject: str, *, without_schemas: bool
) -> dict[str, Any] | None:
    if not isinstance(declared, dict):
        return None
    if without_schemas or _depth(declared) > _MAX_SCHEMA_DEPTH:
        notes.append(f"the server's schema of the {subject} cannot be used: write one")
        return None
    schema: dict[str, Any] = convert_schema(declared)
    # A contract has a fixed dialect, and an $id could refer outside of the file.
    for keyword in ("$schema", "$id"):
        schema.pop(keyword, None)
    return schema


def _outputs(declared: Any, notes: list[str], *, without_schemas: bool) -> dict[str, Any]:
    schema = _schema(declared, notes, "outputs", without_schemas=without_schemas)
    if schema is not None:
        return schema
    if not isinstance(declared, dict):
        notes.append("the server declares no output schema: text is assumed")
        return {"type": "string"}
    return {"type": "object"}


def _effect(declared: Any, notes: list[str], *, has_network: bool) -> dict[str, Any]:
    """Return the effect fields of a contract, by the annotations of the tool."""
    hints = declared if isinstance(declared, dict) else {}
    if hints.get("readOnlyHint") is True:
        notes.append("the server declares that the tool changes nothing")
        return {"idempotent": True, "mutates": [], "approval": "auto", "risk_level": 0}
    destructive = hints.get("destructiveHint")
    if destructive is None:
        notes.append("the server does not declare whether the tool is destructive")
    return {
        "idempotent": hints.get("idempotentHint") is True,
        "mutates": ["network:*" if has_network else "workspace:*"],
        "approval": "always" if destructive is True else "on-mutate",
        "risk_level": 3 if destructive is True else 1 if destructive is False else 2,
    }


def convert_schema(schema: Any) -> Any:
    """Convert a schema of an older dialect to JSON Schema 2020-12."""
    if not isinstance(schema, dict):
        return schema
    converted: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _VALUE_KEYWORDS:
            converted[keyword] = value
        elif keyword in _SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
            converted[keyword] = {name: convert_schema(item) for name, item in value.items()}
        elif keyword == "items" and isinstance(value, list):
            converted["prefixItems"] = [convert_schema(item) for item in value]
        elif keyword == "additionalItems":
            if isinstance(schema.get("items"), list):
                converted["items"] = convert_schema(value)
        elif keyword == "dependencies" and isinstance(value, dict):
            _dependencies(value, converted)
        elif isinstance(value, list):
            converted[keyword] = [convert_schema(item) for item in value]
        else:
            converted[keyword] = convert_schema(value)
    return converted


def _dependencies(declared: Mapping[str, Any], converted: dict[str, Any]) -> None:
    names = {name: value for name, value in declared.items() if isinstance(value, list)}
    schemas = {
        name: convert_schema(value)
        for name, value in declared.items()
        if not isinstance(value, list)
    }
    if names:
        converted["dependentRequired"] = names
    if schemas:
        converted["dependentSchemas"] = schemas


def _depth(value: Any, limit: int = 64) -> int:
    if limit == 0 or not isinstance(value, dict | list):
        return 1
    inside: Sequence[Any] = list(value.values()) if isinstance(value, dict) else value
    return 1 + max((_depth(item, limit - 1) for item in inside), default=0)


# -- mapping between a contract and a tool


def argument_mapping(contract: Mapping[str, Any], tool: Mapping[str, Any]) -> dict[str, str]:
    """Return the argument mapping that is unambiguous by names: contract input → tool argument.

    Equal names need no mapping. If one name remains on each side, they are mapped to each other.
    """
    inputs = _properties(contract)
    arguments = _properties(tool)
    unmapped_inputs = [name for name in inputs if name not in arguments]
    unmapped_arguments = [name for name in arguments if name not in inputs]
    required_arguments = [
        name for name in unmapped_arguments if name in (tool.get("required") or ())
    ]
    return (
        {unmapped_inputs[0]: required_arguments[0]}
        if len(unmapped_inputs) == 1 and len(required_arguments) == 1
        else {}
    )


def _properties(schema: Mapping[str, Any]) -> list[str]:
    properties = schema.get("properties")
    return list(properties) if isinstance(properties, dict) else []


# -- The files of a new driver: drafted from the server's lists, parsed again, then written.


class DriverFiles(Struct):
    """The files of a new driver before they are written."""

    folder: Path
    files: dict[Path, str] = field(default_factory=dict)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Notes that a person should check, by contract."""
    existing: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Existing contracts, with the reasons why the server's tool does not fit them."""
    remarks: list[str] = field(default_factory=list)
    """Messages from the connection to the server."""
    omitted: dict[str, str] = field(default_factory=dict)
    """Tools without a contract, with the reasons."""


async def draft_files(
    request: DriverRequest,
    project: DriverProject,
    folder: Path,
    chosen: dict[str, str] | None,
    *,
    report: Callable[[str], None],
) -> DriverFiles:
    """Connect to the server once and draft the files. Raises InterlockError."""
    manifest = request.manifest(folder)
    report(f"connecting to {request.ref}")
    inventory = _inventory(request, folder)
    async with open_server(
        manifest,
        project,
        inventory=inventory,
        may_install=True,
        progress=lambda step, of, text: report(f"[{step}/{of}] {text}"),
        warn=output.print_note,
    ) as server:
        tools, offer = server.tools(), server.offer
        server_name, revision = server.server, server.peer.revision
    report(f"{server_name or request.ref}: {format_count(len(tools), 'tool')}")
    driver_files = DriverFiles(folder, remarks=[*server.secret_notes(), *server.egress_notes()])
    _require_tools(chosen, tools)
    own_secrets = _own_secrets(request, project, folder)
    entries = [*_draft_entries(driver_files, request, project, list(tools.values()), chosen)]
    if not entries:
        raise _no_contract_error(request, driver_files)
    description_text = one_line(
        f"{server_name or request.ref}, an MCP server ({request.kind}).", 2000
    )
    fields = driver_fields(
        request,
        entries,
        description_text=description_text,
        prompts=named_definitions(offer.prompts),
        resources=decode_objects((*offer.resources, *offer.templates)),
        own_secrets=bool(own_secrets),
    )
    driver_files.files[folder / "DRIVER.md"] = manifest_text(
        fields, driver_body(request, server_name, revision)
    )
    if own_secrets:
        body = f"# Secrets of {fields['name']}\n\nNames only. Values are never stored here."
        driver_files.files[folder / "SECRETS.md"] = manifest_text(
            secrets_fields(request.id, own_secrets), body
        )
    _validate(driver_files, project)
    return driver_files


def _own_secrets(request: DriverRequest, project: DriverProject, folder: Path) -> list[str]:
    """Return the secrets that no other inventory of the workspace lists. A secret is listed
    once."""
    entries = project.workspace.secrets.entries
    listed_elsewhere = {
        name
        for name, slug in project.workspace.secret_names.items()
        if entries[slug].file.parent != folder.resolve()
    }
    return [name for name in request.secrets if name not in listed_elsewhere]


def _inventory(request: DriverRequest, folder: Path) -> SecretsInventory:
    entries = {}
    for name in request.secrets:
        slug = name.lower().replace("_", "-")
        entries[slug] = SecretEntry(slug, name, name, folder / "SECRETS.md", env=name)
    return SecretsInventory(entries)


def _require_tools(chosen: dict[str, str] | None, listed: dict[str, Any]) -> None:
    for name in chosen or ():
        if name not in listed:
            similar = difflib.get_close_matches(name, listed, n=1)
            hint = (
                f"did you mean {similar[0]!r}?"
                if similar
                else f"it has {', '.join(listed) or 'no tools'}"
            )
            raise InterlockError(
                CONFIG, f"the server has no tool {name!r}; {output.sanitize(hint)}"
            )


def _no_contract_error(request: DriverRequest, driver_files: DriverFiles) -> Exception:
    reasons = "; ".join(f"{tool}: {reason}" for tool, reason in driver_files.omitted.items())
    details = f" ({output.sanitize(reasons)})" if reasons else ""
    return InterlockError(
        CONFIG, f"{request.ref} has no tool for which a contract can be created{details}."
    )


def _draft_entries(
    driver_files: DriverFiles,
    request: DriverRequest,
    project: DriverProject,
    definitions: list[dict[str, Any]],
    chosen: dict[str, str] | None,
) -> Iterator[ContractEntry]:
    by_name = {definition["name"]: definition for definition in definitions}
    drafts = draft_contracts(
        definitions, prefix=prefix_of(request.id), chosen=chosen, has_network=request.has_network
    )
    for draft in drafts:
        existing = _find_contract(project, draft.id)
        if existing is not None:
            schema = by_name[draft.tool].get("inputSchema")
            mapping = argument_mapping(existing.inputs, schema if isinstance(schema, dict) else {})
            entry = ContractEntry(draft.tool, existing.id, existing.version, mapping)
            driver_files.existing[existing.id] = _find_misfits(entry, existing, by_name[draft.tool])
            yield entry
            continue
        result = _parsable_draft(draft, by_name[draft.tool], has_network=request.has_network)
        if isinstance(result, str):
            driver_files.omitted[draft.tool] = result
            continue
        path = f"tools/{result.id}/TOOL.md"
        body = contract_body(result.fields, result.notes, request.id)
        driver_files.files[project.base_dir / path] = manifest_text(result.fields, body)
        driver_files.notes[result.id] = result.notes
        yield ContractEntry(draft.tool, f"./{path}", "1.0.0")


def _find_misfits(
    entry: ContractEntry, contract: ToolContract, definition: dict[str, Any]
) -> tuple[str, ...]:
    """Return why an existing contract does not fit the tool."""
    mcp = McpBinding(entry.tool_name, entry.argument_mapping)
    implementation = ImplementedContract(contract.id, f"^{contract.version}", mcp=mcp)
    return check_binding(contract, implementation, definition).errors


def _find_contract(project: DriverProject, id: str) -> ToolContract | None:
    versions = project.workspace.versions(id)
    return max(versions, key=lambda contract: contract.major) if versions else None


def _parsable_draft(
    draft: ContractDraft, definition: dict[str, Any], *, has_network: bool
) -> ContractDraft | str:
    """Return the draft in a form that can be parsed, if necessary without the server's schemas, or
    the problem as a sentence."""
    file = Path("TOOL.md")
    if not parse_contract(manifest_text(draft.fields, ""), file).problems:
        return draft
    schemaless_draft = draft_contract(
        definition, draft.id, has_network=has_network, without_schemas=True
    )
    problems = parse_contract(manifest_text(schemaless_draft.fields, ""), file).problems
    return schemaless_draft if not problems else problems[0].message


def _validate(driver_files: DriverFiles, project: DriverProject) -> None:
    """Parse the drafts as `drivers check` would. Raises ManifestError."""
    readers: dict[str, Any] = {
        MANIFEST_FILE: lambda text, file: parse_driver(text, file, root=project.base_dir),
        INVENTORY_FILE: parse_inventory,
    }
    for path, text in driver_files.files.items():
        if path.name in readers:
            readers[path.name](text, path).unwrap()


def write(driver_files: DriverFiles, force: bool) -> None:
    existing = [path for path in driver_files.files if path.exists()]
    if existing and not force:
        names = ", ".join(str(path) for path in existing)
        raise InterlockError(
            CONFIG, f"nothing was written: {names} already exists. Use --force to replace it."
        )
    for path, text in driver_files.files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, path)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InterlockError(CONFIG, f"{path} cannot be written: {reason}.") from None


_FIRST_CONFIG: Final = """\
# `interlock up` runs the drivers of this folder (.drivers). Servers can be added here too.
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
        typer.Argument(metavar="REF", help="A package, program, image or URL.", show_default=False),
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARG]...", help="Arguments of the server.", show_default=False),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="Id of the driver. Default: derived from REF, such as files-mcp.",
        ),
    ] = None,
    transport: Annotated[
        str | None,
        typer.Option(
            "--transport", metavar="T", help="Transport of a remote server: http (default) or sse."
        ),
    ] = None,
    tools: Annotated[
        str | None,
        typer.Option(
            "--tools",
            metavar="TOOL[:CONTRACT],...",
            help="Include only these tools, optionally with contract ids: "
            "read_file:fs-read,write_file. Default: all.",
        ),
    ] = None,
    egress: Annotated[
        list[str] | None,
        typer.Option(
            "--egress", metavar="HOST", help="A host that the server may reach. Repeatable."
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env", "-e", metavar="NAME=VALUE", help="A variable that is not secret. Repeatable."
        ),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="NAME",
            help="A secret, by the name of the variable that contains it. A started server gets it "
            "under that name, a remote server as a bearer token.",
        ),
    ] = None,
    pip: Annotated[
        str | None,
        typer.Option(
            "--pip",
            metavar="PACKAGE",
            help="The pip package that contains the program of a binary server.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="The drivers folder. Default: that of the config, else .drivers.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Install the package without asking.")
    ] = False,
    config: config_source.ConfigOption = None,
) -> None:
    """Create a driver for an MCP server: connect to it once and write what it offers as files.

    Writes DRIVER.md (and SECRETS.md) into .drivers/ID, and a contract TOOL.md for every tool into
    tools/. The server is confined to the hosts of --egress, also for this connection. The files are
    drafts of what the server declares: read the contracts before you use them.

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

    request = _build_request(kind, ref, args, id, transport, egress, env, secret, pip)
    chosen = _parse_tools(tools)
    source = config_source.find_source_or_none(config)
    loaded, base_dir = config_source.load_or_default(source)
    folders = out if out is not None else base_dir / loaded.section(DriversConfig).folders[0]
    folder = folders.absolute() / request.id
    if out is not None:
        base_dir = folders.absolute().parent
    project = project_of(loaded, base_dir)
    _require_new_folder(folder, project, force)
    manifest = request.manifest(folder)
    if manifest.install and not project.settings.allow_install:
        require_consent(manifest, yes=yes)
    with _progress_printer() as report:
        driver_files = run(draft_files(request, project, folder, chosen, report=report))
    if source is None and out is None:
        # `interlock up` needs a config to find the drivers.
        from interlock.core.config import DEFAULT_NAME

        driver_files.files.setdefault(base_dir / DEFAULT_NAME, _FIRST_CONFIG)
    write(driver_files, force)
    _print_summary(driver_files, project)
    # The files were validated alone. This finds problems that appear only together with other
    # files.
    project_of(loaded, base_dir).manifest(request.id)


# -- request


def _build_request(
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
        raise typer.BadParameter(
            f"{kind!r} is not a kind of server. Use one of {', '.join(_KINDS)}."
        )
    selected = transport or _TRANSPORTS[kind][0]
    if selected not in _TRANSPORTS[kind]:
        supported = " or ".join(_TRANSPORTS[kind])
        raise typer.BadParameter(f"a {kind} server uses the transport {supported}, not {selected}.")
    if kind == "remote" and (args or env):
        raise typer.BadParameter(
            "a remote server is not started, so it takes no arguments and no --env."
        )
    if pip and kind != "binary":
        raise typer.BadParameter("--pip is only for KIND binary.")
    hosts = list(egress or ())
    if kind == "remote" and not hosts:
        # The host of the server itself must be reachable.
        hosts = [urlsplit(ref).netloc.rpartition("@")[2]]
    variables = dict(_parse_variable(variable) for variable in env or ())
    for name in secret or ():
        if not _SECRET.fullmatch(name):
            raise typer.BadParameter(f"--secret must be a name in capital letters. Found {name!r}.")
    driver_id_text = id or driver_id(kind, ref)
    id_schema = DRIVER["properties"]["id"]
    if not re.fullmatch(id_schema["pattern"], driver_id_text):
        raise typer.BadParameter(
            f"{driver_id_text!r} is not a valid driver id: {id_schema['description']}."
        )
    return DriverRequest(
        id=driver_id_text,
        kind=kind,  # type: ignore[arg-type]
        ref=ref,
        transport=selected,  # type: ignore[arg-type]
        args=tuple(args or ()),
        egress=tuple(hosts),
        env=variables,
        secrets=tuple(dict.fromkeys(secret or ())),
        pip=pip or "",
    )


def _parse_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not _VARIABLE.fullmatch(name):
        raise typer.BadParameter(f"--env must be NAME=VALUE. Found {name!r}.")
    return name, value


def _parse_tools(tools: str | None) -> dict[str, str] | None:
    """Parse `read_file:fs-read,write_file` into tool → contract."""
    from interlock.manifests.schemas import TOOL

    if tools is None:
        return None
    id_schema = TOOL["properties"]["id"]
    contracts: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in tools.split(","))):
        name, _, contract = part.partition(":")
        if not name:
            raise typer.BadParameter(f"--tools must be TOOL or TOOL:CONTRACT. Found {part!r}.")
        if contract and not re.fullmatch(id_schema["pattern"], contract):
            raise typer.BadParameter(
                f"{contract!r} is not a valid contract id: {id_schema['description']}."
            )
        contracts[name] = contract
    return contracts


def _require_new_folder(folder: Path, project: DriverProject, force: bool) -> None:
    from interlock.errors import CONFIG, InterlockError

    path = folder / "DRIVER.md"
    if path.exists() and not force:
        raise InterlockError(
            CONFIG,
            f"{project.display_path(path)} already exists. Choose another --id, or use --force.",
        )


def _print_summary(driver_files: DriverFiles, project: DriverProject) -> None:
    for path in sorted(driver_files.files):
        print(project.display_path(path))
    for sentence in driver_files.remarks:
        output.print_note(sentence)
    for id, misfits in driver_files.existing.items():
        output.print_note(f"{id} is an existing contract; the driver serves it.")
        for sentence in misfits:
            output.print_note(f"Warning: the tool does not fit it: {output.sanitize(sentence)}")
    for tool, reason in driver_files.omitted.items():
        output.print_note(
            f"Warning: {output.sanitize(tool)} has no contract: {output.sanitize(reason)}"
        )
    for id, notes in driver_files.notes.items():
        if notes:
            output.print_note(f"{id}: {output.sanitize('; '.join(notes))}")
    contract = next(iter(driver_files.notes), "") or next(iter(driver_files.existing))
    output.print_note(
        "Check the files, then run: `interlock drivers check --live && "
        f"interlock drivers explain {contract}`"
    )


@contextmanager
def _progress_printer() -> Iterator[Callable[[str], None]]:
    """Show progress: one changing line on a terminal, a line per step elsewhere."""
    if not sys.stderr.isatty():
        yield lambda text: output.print_note(output.sanitize(text))
        return
    from rich.text import Text

    with output.create_console(stderr=True).status("") as status:
        yield lambda text: status.update(Text(output.sanitize(text)))
