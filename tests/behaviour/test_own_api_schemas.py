"""Responses of a live node match `schemas/`, and the generated client works."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import connect

from interlock.contracts.config import ContractsConfig
from interlock.contracts.registry import records as contract_records
from interlock.contracts.registry.registry import ContractRegistry
from interlock.contracts.schemas.artefacts import GENERATOR
from interlock.contracts.schemas.build import build_all
from interlock.contracts.schemas.publication import list_publications
from interlock.core.server.http.resource_metadata import ResourceMetadata
from interlock.tree.config import ParentConfig
from interlock.trust.operators.store import Invitation
from tests.behaviour.adversary import CHILD, CLERK, MODEL, fresh
from tests.behaviour.api_office import (
    HANG_TIMEOUT,
    SCHEMAS,
    Caller,
    Office,
    assert_matches,
    openapi_document,
    schema_of,
)
from tests.behaviour.test_aql_adversary import View
from tests.drivers.driver_workspace import Workspace
from tests.drivers.driver_workspace import running as on_workspace
from tests.support.node import NodeThread
from tests.support.tool_server import ToolServer

ROOM = "ops-1"


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    node = Office(tmp_path_factory.mktemp("office") / "node")
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture(scope="module")
def child(office: Office, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    """A node below it, with a server of its own."""
    parent = ParentConfig(
        url=f"ws://127.0.0.1:{office.port}/ax", segment="edge", token="${env:PARENT_TOKEN}"
    )
    node = NodeThread(
        tmp_path_factory.mktemp("child"),
        workshops={"shop": ToolServer()},
        environ={"PARENT_TOKEN": CHILD},
        parent=parent,
    )
    try:
        node.do(node.node.on_settled)
        office.until(
            lambda: any("edge.shop." in item for item in office.node.catalog.current.by_name),
            "the child's tools",
        )
        yield node
    finally:
        node.stop()


@pytest.fixture(scope="module")
def client_module() -> Iterator[Any]:
    path = SCHEMAS / "python" / "interlock_v1_client.py"
    spec = importlib.util.spec_from_file_location("interlock_v1_client", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["interlock_v1_client"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["interlock_v1_client"]


# -- what a live node answers


def test_every_path_is_documented(office: Office) -> None:
    paths = set(openapi_document()["paths"])
    table = office.node.listeners.table
    served = {*table.status, *table.public}
    assert served <= paths
    unknown = office.told("/no/such/path")["message"]
    for path in sorted(paths):
        if path.startswith("/contracts") or "oauth-protected-resource" in path:
            # There where the config wants them; their own tests show it.
            continue
        response = office.told(path.replace("{id}", "x"), MODEL)
        assert response != {"error": "not_found", "message": unknown}, path


def test_status_matches_schema(office: Office, child: NodeThread) -> None:
    assert_matches("Health", office.told("/healthz", None))
    status = office.told("/status")
    assert_matches("NodeStatus", status)
    assert {upstream["key"] for upstream in status["upstreams"]} == {"vault", "ax:edge"}
    assert status["journal"]["state"] == "ok"
    with urllib.request.urlopen(f"http://127.0.0.1:{child.port}/status") as answer:
        below = json.load(answer)
    assert_matches("NodeStatus", below)
    assert below["parent"]["state"] == "registered"
    tree = office.told("/tree")
    assert_matches("TreeNode", tree)
    assert tree["children"][0]["children"][0]["name"] == "shop"
    routes = office.told("/routes")
    assert_matches("RoutingTable", {"routes": routes})
    assert any(name.startswith("edge.shop.") for name in routes)
    assert_matches("KeySet", office.told("/.well-known/jwks.json", None))


async def test_driver_status_matches_schema(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    workspace.driver("echo-mcp", workspace.echoes(contract))
    (tmp_path / ".drivers" / "broken").mkdir()
    (tmp_path / ".drivers" / "broken" / "DRIVER.md").write_text("no driver")

    async with on_workspace(workspace) as node:

        def look() -> dict[str, str]:
            message = json.loads(msgspec.json.encode(node.node.report().document()))
            assert_matches("NodeStatus", message)
            assert [contract["key"] for contract in message["contracts"]] == ["text.echo@1"]
            return {driver["id"]: driver["state"] for driver in message["drivers"]}

        assert look() == {"broken": "refused", "echo-mcp": "unverified"}
        await node.call("text.echo", text="hello")
        assert look() == {"broken": "refused", "echo-mcp": "running"}


def test_resource_metadata_matches_schema(office: Office) -> None:
    metadata = ResourceMetadata("https://a.example/mcp", ["https://b.example"], mcp_path="/mcp")
    challenges = office.node.trust.identity.challenges
    office.do(lambda: setattr(challenges, "metadata", metadata))
    try:
        assert_matches(
            "ResourceMetadata", office.told("/.well-known/oauth-protected-resource", None)
        )
    finally:
        office.do(lambda: setattr(challenges, "metadata", None))


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        ("/status", None, 401),
        ("/nowhere", CLERK, 404),
        ("/approvals", MODEL, 403),
        ("/approvals/unknown", CLERK, 404),
        ("/admin/participants", MODEL, 403),
        ("/admin/topics", MODEL, 403),
        ("/approvals/codes", CLERK, 403),
    ],
)
def test_errors_match_schema(office: Office, path: str, token: str | None, status: int) -> None:
    got, told = office.answer(path, token)
    assert got == status
    assert_matches("Error", told)


def test_approvals_match_schema(office: Office) -> None:
    model = Caller(office)
    arguments = fresh()
    result = model.call(arguments)["result"]
    assert_matches(
        "ToolCallResult", {key: item for key, item in result.items() if key != "resultType"}
    )
    assert_matches("HeldCall", result["structuredContent"])
    assert_matches("ToolCallRequest", {"name": "vault.open", "arguments": arguments})
    id = result["structuredContent"]["confirmation_id"]
    listing = office.told("/approvals")
    assert_matches("ApprovalList", listing)
    assert id in [approval["id"] for approval in listing["approvals"]]
    approval = office.told(f"/approvals/{id}", None)
    assert_matches("Approval", approval)
    assert_matches("Approval", office.told(f"/approvals/{id}/revealed"))
    decision = {"proof": office.signed(approval), "accept_masked": True}
    assert_matches("Decision", decision)
    office.allowed.append(arguments)
    decided = office.told(f"/approvals/{id}", None, decision)
    assert_matches("Decided", decided)
    assert_matches("Approval", decided)
    assert (decided["state"], decided["outcome"]) == ("done", "ok")
    assert_matches("Approval", office.told(f"/approvals/{id}", None))
    pending = model.hold(fresh())
    no = office.told(f"/approvals/{pending['confirmation_id']}", None)
    decision = {"proof": office.signed(no, "refuse")}
    assert_matches("Decided", office.told(f"/approvals/{no['id']}", None, decision))


def test_operator_sessions_and_codes_match_schema(office: Office) -> None:
    question = office.told("/approvals/session", None)
    assert_matches("SessionQuestion", question)
    answer = office.sign_in(question)
    assert_matches("SessionAnswer", answer)
    session = office.told("/approvals/session", None, answer)
    assert_matches("OperatorSession", session)
    model = View(office)
    office.begin(model)
    assert model.report("drop_table users")["stopped"] is True
    office.waiting("aql.unblock")
    header = {"Interlock_Session": session["session"]}
    desk = office.told("/approvals/codes", None, **header)
    assert_matches("SafetyDesk", desk)
    assert desk["challenges"]
    assert desk["blocks"]
    wanted = {"renew": desk["challenges"][0]["id"]}
    assert_matches("SafetyRequest", wanted)
    renewed = office.told("/approvals/codes", None, wanted, **header)
    assert_matches("SafetyAnswer", renewed)
    assert_matches("Challenge", renewed)
    ended = office.told("/approvals/codes", None, {"end": desk["executions"][0]["id"]}, **header)
    assert_matches("SafetyAnswer", ended)
    assert_matches("Execution", ended)


def test_enrolment_matches_schema(office: Office) -> None:
    approving = office.node.trust.approving
    assert approving is not None
    code = approving.operators.store.invite(Invitation("ada"))
    request = {"code": code}
    assert_matches("Enrolment", request)
    assert_matches("Enrolled", office.told("/approvals/enrol", None, request))


async def test_topics_match_schema(office: Office) -> None:
    url = f"ws://127.0.0.1:{office.port}/ws?topic={ROOM}"
    headers = {"Authorization": f"Bearer {MODEL}"}
    async with connect(url, additional_headers=headers, proxy=None) as socket:
        await socket.recv()
        present = await asyncio.to_thread(office.told, "/admin/participants")
        assert_matches("ParticipantList", present)
        assert_matches("TopicList", await asyncio.to_thread(office.told, "/admin/topics"))
        one = next(
            participant for participant in present["participants"] if participant["topic"] == ROOM
        )
        change = {"add": ["chat"], "remove": []}
        assert_matches("CapabilityChange", change)
        path = f"/admin/participants/{one['participantId']}/capabilities?topic={ROOM}"
        changed = await asyncio.to_thread(office.told, path, CLERK, change)
        assert_matches("CapabilitiesChanged", changed)
        assert_matches("NodeStatus", await asyncio.to_thread(office.told, "/status"))


# -- the generated client


@pytest.mark.spec("ST-4.6.3-4")
def test_generated_client_reads_live_node(
    office: Office, child: NodeThread, client_module: Any
) -> None:
    client = client_module.Client(office.base, token=CLERK)
    assert client.get_health().status == "ok"
    status = client.get_status()
    assert isinstance(status, client_module.NodeStatus)
    assert {upstream.key: upstream.state for upstream in status.upstreams} == {
        "vault": "ready",
        "ax:edge": "ready",
    }
    assert client.get_tree().children[0].name == "edge"
    assert any(name.startswith("edge.shop.") for name in client.get_routes())
    assert client.get_keys().keys
    assert client.list_participants(topic="none").participants == []
    with pytest.raises(client_module.ResponseError) as error:
        client_module.Client(office.base).get_status()
    assert error.value.status == 401
    assert error.value.data["error"] == "unauthenticated"


@pytest.mark.spec("ST-4.6.3-4")
def test_generated_client_decides_approval(office: Office, client_module: Any) -> None:
    client = client_module.Client(office.base, token=CLERK)
    arguments = fresh()
    id = Caller(office).hold(arguments)["confirmation_id"]
    assert id in [approval.id for approval in client.list_approvals().approvals]
    first = next(client.follow_approvals())
    assert id in [approval.id for approval in first.approvals]
    approval = client.get_approval(id)
    assert (approval.state, approval.tool) == ("pending", "vault.open")
    story = client.follow_approval(id)
    assert next(story).state == "pending"
    proof = office.signed(msgspec.to_builtins(approval))
    office.allowed.append(arguments)
    decided = client.decide(id, client_module.Decision(proof=proof))
    assert (decided.state, decided.result["isError"]) == ("done", False)
    assert list(story)[-1].state == "done"
    assert proof not in repr(client_module.Decision(proof=proof))
    question = client.ask_for_session()
    answer = office.sign_in(msgspec.to_builtins(question))
    session = client.open_session(client_module.SessionAnswer(**answer)).session
    operator = client_module.Client(office.base, headers={"Interlock-Session": session})
    assert operator.get_safety_desk().mode == "enforcing"
    assert operator.list_approvals() is not None


# -- the registry


@pytest.fixture
def registry_node(tmp_path: Path) -> Iterator[NodeThread]:
    """A node with a registry, in which the node's own API is published."""
    registry = ContractRegistry(tmp_path / "registry")
    try:
        for publication in list_publications(build_all(SCHEMAS)):
            source = contract_records.Provenance(
                publication.source, GENERATOR, "2026-05-01T12:00:00Z"
            )
            contract = contract_records.Contract(
                publication.name,
                publication.version,
                publication.domain,
                publication.protocol,
                publication.document,
                source,
            )
            if publication.name in ("NodeStatus", "TopicStatus", "interlock.v1"):
                registry.publish(contract, author="ada", reason="first")
        registry.deprecate("TopicStatus", 1, author="ada", migration_uri="https://a.example/2")
    finally:
        registry.close()
    node = NodeThread(
        tmp_path, workshops={}, contracts=ContractsConfig(registry=str(tmp_path / "registry"))
    )
    try:
        yield node
    finally:
        node.stop()


def test_registry_matches_schema(registry_node: NodeThread, client_module: Any) -> None:
    base = f"http://127.0.0.1:{registry_node.port}"

    def told(path: str, sent: Any = None) -> Any:
        body = None if sent is None else json.dumps(sent).encode()
        request = urllib.request.Request(
            f"{base}{path}", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=HANG_TIMEOUT) as answer:
            return json.load(answer)

    listing = told("/contracts")
    assert_matches("ContractList", listing)
    assert len(listing["contracts"]) == 3
    assert_matches("ContractDocument", told("/contracts/NodeStatus?version=1.x"))
    assert_matches("ContractDocument", told("/contracts/interlock.v1?protocol=openapi"))
    assert_matches("ContractLog", told("/contracts/TopicStatus/log"))
    checked = told("/contracts/TopicStatus/validate", {"members": "x"})
    assert_matches("ContractValidation", checked)
    assert checked["deprecation"] is not None
    client = client_module.Client(base)
    result = client.get_contract("NodeStatus", version="1.x", protocol="json-schema")
    assert result.schema == {
        key: item for key, item in schema_of("NodeStatus").items() if key != "x-generated-from"
    }
    assert result.provenance.source == "proto/interlock/v1/status.proto"
    topics = client.list_contracts(domain="interlock.v1", name="Topic*").contracts
    assert [topic.name for topic in topics] == ["TopicStatus"]
    assert client.get_contract("TopicStatus").deprecation.major == 1
    assert client.get_contract_log("NodeStatus", count=1).log[0].author == "ada"
    # The node's own status is what its published contract asks for.
    status = msgspec.to_builtins(client.get_status())
    assert client.validate_contract("NodeStatus", status).valid
    wrong = client.validate_contract("NodeStatus", None)
    assert (wrong.valid, wrong.errors[0].path) == (False, "")
    with pytest.raises(client_module.ResponseError) as error:
        client.get_contract("NodeStatus", version="9.x")
    assert error.value.status == 404
    assert_matches("Error", error.value.data)
