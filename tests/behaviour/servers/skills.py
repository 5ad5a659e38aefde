"""A server with skills (SEP-2640), written with the official SDK: over stdio, in both generations.

    python skills.py NAME SKILL…

Each skill has a SKILL.md and one more file, which say whose they are. `skills/list` shows one skill
per page. A skill called `hidden` is served, but not listed.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import Any

from mcp import MCPError
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import MCPServer
from mcp_types import RequestParams

name, *served = sys.argv[1:]
listed = [skill for skill in served if skill != "hidden"]


class Cursor(RequestParams):
    cursor: str | None = None


class Uri(Cursor):
    uri: str


def text_of(uri: str) -> str:
    skill = uri.removeprefix("skill://").partition("/")[0]
    return f"---\nname: {skill}\ndescription: by {name}\n---\n{uri} of {name}"


def entry_of(skill: str) -> dict[str, Any]:
    files = []
    for file in ("SKILL.md", "notes/more.md"):
        uri = f"skill://{skill}/{file}"
        raw = text_of(uri).encode()
        digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
        files.append({"uri": uri, "digest": digest, "size": len(raw)})
    frontmatter = {"name": skill, "description": f"by {name}", "license": "MIT"}
    return {"uri": files[0]["uri"], "frontmatter": frontmatter, "resources": files}


def cached(result: dict[str, Any]) -> dict[str, Any]:
    return {"resultType": "complete", **result, "ttlMs": 1000, "cacheScope": "private"}


async def list_skills(ctx: Any, params: Cursor) -> dict[str, Any]:
    place = int(params.cursor or 0)
    result: dict[str, Any] = {"skills": [entry_of(tool) for tool in listed[place : place + 1]]}
    if place + 1 < len(listed):
        result["nextCursor"] = str(place + 1)
    return cached(result)


async def get_skill(ctx: Any, params: Uri) -> dict[str, Any]:
    skill = params.uri.removeprefix("skill://").removesuffix("/SKILL.md")
    if skill not in served:
        raise MCPError(code=-32602, message=f"no skill {params.uri}")
    return cached({"skill": entry_of(skill)})


async def read_directory(ctx: Any, params: Uri) -> dict[str, Any]:
    files = [f"{params.uri}/more.md"] if params.uri.endswith("/notes") else []
    resources = [{"uri": uri, "name": uri.rpartition("/")[2]} for uri in files]
    return {"resultType": "complete", "resources": resources}


class Skills(Extension):
    identifier = "io.modelcontextprotocol/skills"

    def settings(self) -> dict[str, Any]:
        return {"directoryRead": True}

    def methods(self) -> Sequence[MethodBinding]:
        return (
            MethodBinding("skills/list", Cursor, list_skills),
            MethodBinding("skills/get", Uri, get_skill),
            MethodBinding("resources/directory/read", Uri, read_directory),
        )


server = MCPServer(name, log_level="CRITICAL", extensions=[Skills()])


@server.resource("skill://{skill}/{+file}")
def read(skill: str, file: str) -> str:
    return text_of(f"skill://{skill}/{file}")


server.run()
