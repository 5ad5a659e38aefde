"""The front matter and the words of a new DRIVER.md and SECRETS.md, from what a person said and
what a server listed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from interlock.cli.driver_texts import one_line
from interlock.manifests.driver import (
    Auth,
    DriverManifest,
    DriverTransport,
    InstallStep,
    RemoteAuth,
    ServerBlock,
    ServerKind,
)

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


class Wish(Struct, frozen=True):
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
                InstallStep(one["method"], {k: v for k, v in one.items() if k != "method"})
                for one in self.install()
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


class Entry(Struct, frozen=True):
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
    wish: Wish,
    entries: Sequence[Entry],
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
    offered = [_prompt(one) for one in prompts if isinstance(one.get("name"), str)]
    if offered:
        fields["prompts"] = offered[:_MOST_LISTED]
    found = [made for one in resources if (made := _resource(one))]
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


def driver_words(wish: Wish, server: str, revision: str) -> str:
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


def _prompt(one: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": one["name"][:200], "integrate_as": "raw"}
    return {**fields, **_described(one)}


def _resource(one: Mapping[str, Any]) -> dict[str, Any] | None:
    uri = one.get("uriTemplate", one.get("uri"))
    if not isinstance(uri, str) or not uri or len(uri) > 2000:
        return None
    return {"uri_template": uri, "integrate_as": "raw", **_described(one)}


def _described(one: Mapping[str, Any]) -> dict[str, str]:
    text = one.get("description")
    shown = one_line(text, 400) if isinstance(text, str) else ""
    return {"description": shown} if shown else {}
