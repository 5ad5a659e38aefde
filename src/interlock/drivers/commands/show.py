"""`interlock drivers show`: the content of a driver and the command that starts it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from interlock.drivers.commands.options import DriverArgument
from interlock.terminal import config_source, output
from interlock.terminal.node_discovery import NodeOption
from interlock.terminal.options import Json

if TYPE_CHECKING:
    from interlock.drivers.commands.workspace import DriverProject
    from interlock.manifests.model import DriverManifest


def show(
    driver: DriverArgument,
    json: Json = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Show one driver: its server, the command that starts it, its network and its contracts.

    The state comes from the running node, or from the files if no node runs. Secrets are shown by
    name only. The command of a container is shown even without a container engine.

    \b
    Example:
      interlock drivers show postgres-mcp
    """
    from interlock.drivers.commands.list import read_node
    from interlock.drivers.commands.offline_status import statuses
    from interlock.terminal.event_loop import run

    project, rows, _ = read_node(config, node, quiet=True)
    manifest = project.manifest(driver)
    node_rows = [row for row in rows or () if row.file == str(manifest.file)]
    status = next(
        row for row in node_rows or run(statuses(project)) if row.file == str(manifest.file)
    )
    details = {
        "id": manifest.id,
        "version": manifest.version,
        "file": str(manifest.file),
        "state": status.state,
        "problem": status.problem,
        **_server(manifest, project),
        "secrets": list(manifest.auth.state_env) if manifest.auth is not None else [],
        "egress": list(manifest.egress),
        "region": list(manifest.region),
        "policy_tags": list(manifest.policy_tags),
        "install": [{"method": step.method, **step.settings} for step in manifest.install],
        "serves": [
            {
                "contract": binding.contract.key,
                "tool": "" if binding.entry.mcp is None else binding.entry.mcp.tool_name,
            }
            for binding in project.workspace.bindings[manifest.key]
        ],
    }
    if json:
        output.print_json(details)
    else:
        _print(manifest, details, project)


def _server(manifest: DriverManifest, project: DriverProject) -> dict[str, Any]:
    """Return the location of the server, or its command line."""
    from interlock.drivers.installation import installed_bin
    from interlock.drivers.launch import server_command
    from interlock.drivers.standalone import installed_folder
    from interlock.errors import InterlockError

    server = manifest.server
    if server is None:
        return {"server": manifest.kind, "command": [], "refused": ""}
    if server.kind == "remote":
        return {"server": server.kind, "url": server.url, "command": [], "refused": ""}
    folder = installed_folder(manifest, project.config, project.base_dir)
    program = installed_bin(manifest, folder)
    rejection, command = "", []
    for confined in (project.settings.sandbox == "enforce", False):
        try:
            command = server_command(
                manifest, workspace=project.base_dir, installed=program, confined=confined
            )
            break
        except InterlockError as error:
            # The command is shown although it would be rejected.
            rejection = rejection or error.message
    return {
        "server": server.kind,
        "command": command,
        "variables": sorted(server.env),
        "refused": rejection,
    }


def _print(manifest: DriverManifest, details: dict[str, Any], project: DriverProject) -> None:
    rows = [
        ("file", project.display_path(manifest.file)),
        ("state", f"{details['state']}{': ' + details['problem'] if details['problem'] else ''}"),
        ("server", details.get("url") or details["server"]),
        ("command", shlex.join(details["command"])),
        ("refused", details["refused"]),
        ("variables", ", ".join(details.get("variables", ()))),
        ("secrets", ", ".join(details["secrets"])),
        ("egress", ", ".join(details["egress"]) or "no network"),
        ("region", ", ".join(details["region"])),
        ("tags", ", ".join(details["policy_tags"])),
        ("install", ", ".join(str(step.get("package") or step.get("image") or step["method"])
                              for step in details["install"])),
    ]  # fmt: skip
    print(f"{manifest.name} {manifest.version} ({manifest.id})")
    for name, text in rows:
        if text:
            print(f"  {name:<10}{output.sanitize(text)}")
    for contract in details["serves"]:
        print(
            f"  serves    {contract['contract'].partition('@')[0]} "
            f"by {output.sanitize(contract['tool'])}"
        )
