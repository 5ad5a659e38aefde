"""Skills (SEP-2640) of several servers behind one node, for clients of both generations."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.core.config import ServerConfig
from interlock.core.config.trust import PolicyConfig, RuleConfig
from tests.support.http_client import HttpResponse
from tests.support.node import NodeThread

SKILLS = Path(__file__).parent / "servers" / "skills.py"
EXTENSION = "io.modelcontextprotocol/skills"
Ask = Callable[[str, dict[str, Any]], HttpResponse]


def serving(*words: str, **settings: Any) -> ServerConfig:
    return ServerConfig(command=sys.executable, args=[str(SKILLS), *words], **settings)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    """Two servers with skills, one of which both have, and one without any."""
    servers = {"one": serving("one", "shared", "only-one"), "two": serving("two", "shared", "b")}
    running = NodeThread(tmp_path_factory.mktemp("skills"), servers=servers, page_size=2)
    yield running
    running.stop()


@pytest.fixture(params=["session", "stateless"])
def ask(request: pytest.FixtureRequest, node: NodeThread) -> Ask:
    session = node.session() if request.param == "session" else None

    def send(method: str, params: dict[str, Any]) -> HttpResponse:
        if session is not None:
            return node.once(session.request(method, params))
        return node.once(node.stateless(method, params, name=params.get("uri")))

    return send


def all_skills(ask: Ask) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    params: dict[str, Any] = {}
    while True:
        result = ask("skills/list", params).result
        found += result["skills"]
        if "nextCursor" not in result:
            return found
        params = {"cursor": result["nextCursor"]}


def test_skills_are_announced_and_listed(node: NodeThread, ask: Ask) -> None:
    opened = node.session().opened["capabilities"]
    assert opened["extensions"][EXTENSION] == {"directoryRead": True}
    skills = all_skills(ask)
    # Both servers have a template for all of these: each is shown in the form that tells whose.
    assert sorted(skill["uri"] for skill in skills) == [
        "interlock:one:skill://only-one/SKILL.md", "interlock:one:skill://shared/SKILL.md",
        "interlock:two:skill://b/SKILL.md", "interlock:two:skill://shared/SKILL.md",
    ]  # fmt: skip
    for skill in skills:
        name = skill["uri"].split("/")[-2]
        segment = skill["uri"].split(":")[1]
        # The frontmatter is the author's own: hosts compare it with the file.
        assert skill["frontmatter"] == {
            "name": name, "description": f"by {segment}", "license": "MIT"
        }  # fmt: skip


def test_files_match_digests(ask: Ask) -> None:
    for skill in all_skills(ask):
        assert ask("skills/get", {"uri": skill["uri"]}).result["skill"] == skill
        assert skill["uri"] in [file["uri"] for file in skill["resources"]]
        for file in skill["resources"]:
            (content,) = ask("resources/read", {"uri": file["uri"]}).result["contents"]
            raw = content["text"].encode()
            assert content["uri"] == file["uri"]
            assert file["size"] == len(raw)
            assert file["digest"] == f"sha256:{hashlib.sha256(raw).hexdigest()}"


def test_directory_is_read(ask: Ask) -> None:
    uri = "interlock:two:skill://shared/notes"
    (child,) = ask("resources/directory/read", {"uri": uri}).result["resources"]
    assert child["uri"] == "interlock:two:skill://shared/notes/more.md"


def test_unknown_skill_is_reported(ask: Ask) -> None:
    answer = ask("skills/get", {"uri": "interlock:one:skill://none/SKILL.md"})
    assert answer.error["code"] == -32602


def test_transparent_server_with_skills_works(start_node: Any) -> None:
    node = start_node(servers={"one": serving("one", "a", "hidden")})
    session = node.session()
    (skill,) = node.once(session.request("skills/list", {})).result["skills"]
    assert skill["uri"] == "skill://a/SKILL.md"
    for name in ("a", "hidden"):
        uri = f"skill://{name}/SKILL.md"
        answer = node.once(session.request("skills/get", {"uri": uri}))
        assert answer.result["skill"]["uri"] == uri
    uri = "skill://a/notes"
    (child,) = node.once(session.request("resources/directory/read", {"uri": uri})).result[
        "resources"
    ]
    assert child["uri"] == "skill://a/notes/more.md"


def test_rule_matches_uri_of_skill_and_directory(start_node: Any) -> None:
    """The member `uri` of the request reaches the policy, in both generations."""
    rule = RuleConfig(
        name="hidden",
        then="deny",
        kinds=[
            "mcp/request:skills/get:skill://hidden/*",
            "mcp/request:resources/directory/read:skill://hidden/*",
        ],
    )
    node = start_node(
        servers={"one": serving("one", "a", "hidden")}, policy=PolicyConfig(rules=[rule])
    )
    session = node.session()
    for method, path in (("skills/get", "SKILL.md"), ("resources/directory/read", "notes")):
        for name, denied in (("a", False), ("hidden", True)):
            params = {"uri": f"skill://{name}/{path}"}
            for answer in (
                node.once(session.request(method, params)),
                node.once(node.stateless(method, params, name=params["uri"])),
            ):
                assert ("error" in answer.json) is denied, (method, name)
                if denied:
                    assert answer.error["data"]["rule"] == "hidden"


def test_skill_methods_are_unknown_without_skills(start_node: Any) -> None:
    node = start_node()
    session = node.session()
    assert EXTENSION not in session.opened["capabilities"].get("extensions", {})
    for method, params in (("skills/list", {}), ("skills/get", {"uri": "skill://a/SKILL.md"})):
        assert node.once(session.request(method, params)).error["code"] == -32601
