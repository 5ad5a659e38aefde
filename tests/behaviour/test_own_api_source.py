"""The source of the node's own API: what is generated from it, and the code that it describes, say
the same."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import msgspec
import pytest

from interlock.contracts.changed_tools import ContractsStatus, Dependents, ToolChange
from interlock.contracts.registry import records as contract_records
from interlock.contracts.schemas.build import build_all
from interlock.contracts.schemas.drift import TypeDescription, find_differences
from interlock.contracts.schemas.openapi import find_problems
from interlock.contracts.schemas.reader import read_json
from interlock.contracts.tool_records import ChangeRecord
from interlock.core.journal.journal import JournalHealth
from interlock.core.pipeline.breaker import Circuit
from interlock.core.status import NodeStatus
from interlock.core.upstreams.registry import UpstreamStatus
from interlock.core.upstreams.supervisor import State as UpstreamState
from interlock.drivers.status import BindingStatus, ContractStatus, DriversStatus, DriverStatus
from interlock.topics import admin_api as admin
from interlock.topics.gateway import ConnectionInfo
from interlock.topics.member import CapabilityUpdate
from interlock.topics.overview import TopicDetails, TopicMember, TopicsStatus, TopicStatus
from interlock.tree.overview import RouteEntry, TreeNode
from interlock.tree.registrant import RegistrantState
from interlock.tree.status import ParentStatus, TreeStatus
from interlock.trust.approvals import record
from interlock.trust.approvals import web as approvals_face
from interlock.trust.approvals import web as verification
from interlock.trust.approvals.proofs import PasskeyCreation
from interlock.trust.operators import operators
from tests.behaviour.api_office import JSON, SCHEMAS, openapi_document, schema_of


@pytest.mark.spec("ST-4.6.2-1", "ST-4.6.3-5")
def test_committed_files_are_up_to_date() -> None:
    built = build_all(SCHEMAS)
    assert [str(problem) for problem in built.problems] == []
    assert [str(item) for item in built.find_outdated()] == []
    kinds = {file.kind for file in built.files}
    assert kinds == {"proto", "json", "openapi", "python"}


@pytest.mark.spec("ST-4.6.1-1")
def test_generated_schemas_are_valid() -> None:
    protos = build_all(SCHEMAS).protos
    assert "interlock.v1.NodeStatus" in protos.messages
    for path in sorted(JSON.glob("*.schema.json")):
        schema = read_json(path.name, path.read_text(encoding="utf-8"))
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        jsonschema_rs.meta.validate(schema)
    assert find_problems(openapi_document()) == []


def test_everything_is_described() -> None:
    protos = build_all(SCHEMAS).protos
    for file in protos.files.values():
        assert file.description, file.name
        for message in file.messages:
            assert message.description, message.full_name
            assert all(field.description for field in message.fields), message.full_name
        for enum in file.enums:
            assert enum.description, enum.full_name
            assert enum.values[0].name.endswith("_UNSPECIFIED")
            assert enum.values[0].number == 0
            assert all(value.description for value in enum.values), enum.full_name
        for service in file.services:
            assert all(method.description for method in service.methods), service.full_name


WHOLE_STATUS = msgspec.defstruct(
    "NodeStatus",
    [
        (field.name, field.type, msgspec.field(default=None))
        for part in (NodeStatus, TreeStatus, TopicsStatus, DriversStatus, ContractsStatus)
        for field in msgspec.structs.fields(part)
    ],
)
"""The node's own fields with those of its features, as they are written."""
STRUCTS: dict[str, Any] = {
    "NodeStatus": WHOLE_STATUS,
    "UpstreamStatus": UpstreamStatus,
    "TopicStatus": TopicStatus,
    "ParentStatus": ParentStatus,
    "DriverStatus": DriverStatus,
    "BindingStatus": BindingStatus,
    "ContractStatus": ContractStatus,
    "ToolChange": ToolChange,
    "ContractChange": ChangeRecord,
    "ReliesOn": Dependents,
    "TreeNode": TreeNode,
    "Route": RouteEntry,
    "Decision": approvals_face.ApprovalDecision,
    "SessionAnswer": approvals_face.SessionAnswer,
    "Enrolment": operators._EnrolmentRequest,
    "PasskeyCreation": PasskeyCreation,
    "SafetyRequest": verification.SafetyRequest,
    "CapabilityChange": admin.CapabilityChange,
    "CapabilitiesChanged": CapabilityUpdate,
    "Participant": ConnectionInfo,
    "Topic": TopicDetails,
    "TopicMember": TopicMember,
    "ContractProvenance": contract_records.Provenance,
    "ContractDeprecation": contract_records.Deprecation,
    "ContractCommit": contract_records.Commit,
    "ContractValidation": contract_records.Validation,
    "ContractViolation": contract_records.PayloadProblem,
    "RegistryMetrics": contract_records.RegistryMetrics,
}
"""What is read or written as it is, and the type that describes it."""
SAID_MORE_CLOSELY = {
    "NodeStatus": ("upstreams[].set_aside[].", "journal."),
    "UpstreamStatus": ("set_aside[].",),
    "Route": ("capability is",),
}
"""Where a struct says less than the schema: what a live node answers shows that it is so."""


@pytest.mark.parametrize("name", STRUCTS)
def test_struct_fields_match_schema(name: str) -> None:
    struct = msgspec.json.schema(STRUCTS[name])
    ours = schema_of(name)
    actual = [
        difference
        for difference in find_differences(
            TypeDescription("the code", struct, struct), TypeDescription("schemas/", ours, ours)
        )
        # What is always written has a default in the code, or is a word of an enum there.
        if " is required in schemas/ only" not in difference
        and "certain values in schemas/" not in difference
    ]
    response = SAID_MORE_CLOSELY.get(name, ())
    assert [item for item in actual if not item.startswith(response or ("\0",))] == []


@pytest.mark.parametrize(
    ("file", "name", "words"),
    [
        ("NodeStatus", "UpstreamState", [item.value for item in UpstreamState]),
        ("NodeStatus", "Circuit", [item.value for item in Circuit]),
        ("NodeStatus", "ParentState", [item.value for item in RegistrantState]),
        ("Approval", "ApprovalState", [*record.TRANSITIONS, "passed_on"]),
    ],
)
def test_enum_values_match_schema(file: str, name: str, words: list[str]) -> None:
    assert set(schema_of(file)["$defs"][name]["enum"]) == set(words)


def test_journal_health_matches_schema() -> None:
    assert list(schema_of("JournalHealth")["properties"]) == list(JournalHealth._fields)
