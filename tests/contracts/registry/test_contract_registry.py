"""Tests of the contract registry: publish, find, validate and deprecate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from interlock.contracts.registry.changes import ContractSnapshot, SnapshotResult
from interlock.contracts.registry.git import GitChoice
from interlock.contracts.registry.records import (
    MAX_DOCUMENT_BYTES,
    Contract,
    PipelineRun,
    Provenance,
)
from interlock.errors import InterlockError
from interlock.primitives.timestamps import format_utc
from tests.contracts.registry.git_repositories import MEANS, git, is_clean
from tests.contracts.registry.registry_contracts import RegistryBench, contract, schema

REQUEST = "ToolInvocationRequest"


@pytest.fixture(params=MEANS)
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RegistryBench]:
    means: GitChoice = request.param
    one = RegistryBench(tmp_path / "registry", means)
    yield one
    one.close()


def publish_and_get_error(shelf: RegistryBench, *args: object, **kwargs: object) -> InterlockError:
    return get_publish_error(shelf, contract(*args, **kwargs))  # type: ignore[arg-type]


def get_publish_error(shelf: RegistryBench, one: Contract) -> InterlockError:
    with pytest.raises(InterlockError) as raised:
        shelf.put(one)
    return raised.value


def publish_requests(shelf: RegistryBench) -> None:
    more: dict[str, str] = {}
    for version, name in (("2.3.0", "id"), ("2.3.4", "note"), ("2.4.0", "deadline")):
        more[name] = "string"
        shelf.put(
            contract(
                REQUEST,
                version,
                schema(("tool",), tool="string", **more),
                domain="agent",
                source=f"{version}.proto",
            ),
            f"the request at {version}",
        )


# -- finding


@pytest.mark.spec("ST-4.6.4-2")
def test_finds_version_with_provenance(shelf: RegistryBench) -> None:
    publish_requests(shelf)
    found = shelf.registry.find(REQUEST, "2.3.x", protocol="json-schema")
    assert (found.version, found.domain, found.protocol) == ("2.3.4", "agent", "json-schema")
    assert found.provenance == Provenance("2.3.4.proto", "interlock 1", "2027-01-01T00:00:00Z")
    assert "note" in found.schema()["properties"]
    assert shelf.registry.find(REQUEST).version == "2.4.0"
    assert shelf.registry.find(REQUEST, "2.3.0 - 2.3.3").version == "2.3.0"
    with pytest.raises(InterlockError) as raised:
        shelf.registry.find(REQUEST, "9.x")
    error = raised.value
    assert error.failure.name == "unknown_contract"
    assert error.failure.http == 404
    assert error.message == (f"{REQUEST} has no version in 9.x. Available: 2.3.0, 2.3.4, 2.4.0.")
    assert error.data == {
        "name": REQUEST, "range": "9.x", "versions": ["2.3.0", "2.3.4", "2.4.0"],
    }  # fmt: skip


def test_missing_contract_lists_versions(shelf: RegistryBench) -> None:
    registry = shelf.registry
    with pytest.raises(InterlockError, match="There is no contract Order"):
        registry.find("Order")
    publish_requests(shelf)
    with pytest.raises(InterlockError, match=f"Did you mean {REQUEST}"):
        registry.find("ToolInvocationRequests")
    with pytest.raises(InterlockError, match=r"Found: agent \(json-schema\)"):
        registry.find(REQUEST, domain="shop")
    with pytest.raises(InterlockError, match="is not a version range"):
        registry.find(REQUEST, "no range")
    assert registry.versions(REQUEST) == ["2.3.0", "2.3.4", "2.4.0"]
    assert registry.versions("Nobody") == []
    assert registry.supported_majors(REQUEST) == [2]


def test_ambiguous_name_needs_domain_or_protocol(shelf: RegistryBench) -> None:
    shelf.put(contract("Order", "1.0.0", domain="shop"))
    shelf.put(contract("Order", "1.0.0", domain="agent"))
    with pytest.raises(InterlockError, match=r"several domains: agent, shop\. Name the domain"):
        shelf.registry.find("Order")
    assert shelf.registry.find("Order", domain="agent").domain == "agent"
    proto = b'syntax = "proto3";\nmessage Order { string id = 1; }\n'
    shelf.put(contract("Order", "1.2.0", proto, protocol="protobuf"))
    shelf.put(contract("Order", "1.1.0", {"openapi": "3.1.0"}, protocol="openapi"))
    # Where nobody says which, the JSON Schema is meant.
    assert shelf.registry.find("Order", domain="shop").protocol == "json-schema"
    found = shelf.registry.find("Order", protocol="protobuf")
    assert (found.version, found.schema()) == ("1.2.0", proto.decode())
    assert found.path == "shop/Order/1.2.0.proto"
    with pytest.raises(InterlockError, match="several protocols: openapi, protobuf"):
        shelf.registry.find("Order", ">=1.1", domain="shop")


@pytest.mark.spec("ST-4.6.4-1")
def test_searches_by_every_key(shelf: RegistryBench) -> None:
    publish_requests(shelf)
    shelf.put(
        contract("Order", "1.0.0", generator="other 2", timestamp="2026-06-01T12:00:00+02:00")
    )
    shelf.put(contract("Order", "1.1.0", {"openapi": "3.1.0"}, protocol="openapi"))
    search = shelf.registry.search

    def told(**asked: str) -> list[str]:
        return [f"{one.name}@{one.version}" for one in search(**asked)]  # type: ignore[arg-type]

    orders = ["Order@1.0.0", "Order@1.1.0"]
    all_requests = [f"{REQUEST}@{version}" for version in ("2.3.0", "2.3.4", "2.4.0")]
    assert told() == [*orders, *all_requests]
    assert told(name="Ord*") == orders
    assert told(name=REQUEST, range="2.3.x") == all_requests[:2]
    assert told(domain="agent") == all_requests
    assert told(protocol="openapi") == ["Order@1.1.0"]
    assert told(source="*.proto") == all_requests
    assert told(generator_version="other 2") == ["Order@1.0.0"]
    assert told(until="2026-06-01T11:00:00Z") == ["Order@1.0.0"]
    assert told(since="2026-12-31", name="Order") == ["Order@1.1.0"]
    assert told(name="nothing") == []
    with pytest.raises(InterlockError, match="ISO 8601"):
        told(since="yesterday")


# -- publishing


@pytest.mark.spec("ST-4.6.4-1")
def test_each_publication_is_readable_commit(shelf: RegistryBench) -> None:
    publish_requests(shelf)
    told = git(shelf.folder, "log", "--reverse", "--format=%an: %s").splitlines()
    assert told == [f"operator: the request at {one}" for one in ("2.3.0", "2.3.4", "2.4.0")]
    folder = shelf.folder / "agent" / REQUEST
    assert sorted(one.name for one in folder.iterdir()) == sorted(
        f"{version}.schema{ending}"
        for version in ("2.3.0", "2.3.4", "2.4.0")
        for ending in (".json", ".provenance.json")
    )
    assert (folder / "2.3.4.schema.json").read_text().startswith('{\n  "type": "object"')
    assert is_clean(shelf.folder)
    history = shelf.registry.history(REQUEST, 2)
    assert [(one.author, one.reason) for one in history] == [
        ("operator", "the request at 2.4.0"),
        ("operator", "the request at 2.3.4"),
    ]
    assert history[0].contracts == [f"{REQUEST}@2.4.0 (json-schema)"]
    assert history[0].time == "2027-01-15T08:00:00Z"
    assert len(shelf.registry.history()) == 3
    with pytest.raises(InterlockError, match="There is no contract Order"):
        shelf.registry.history("Order")


def test_published_version_is_immutable(shelf: RegistryBench) -> None:
    shelf.put(contract("Order", "1.0.0", schema(("id",), id="string")))
    before = shelf.registry.metrics().head
    # The same again, also in another order and with other blanks, is no news.
    again = b'{"required": ["id"], "properties": {"id": {"type": "string"}},\n "type": "object"}'
    assert shelf.put(contract("Order", "1.0.0", again)).version == "1.0.0"
    assert shelf.registry.metrics().head == before
    error = publish_and_get_error(shelf, "Order", "1.0.0", schema((), id="string"))
    assert error.failure.name == "contract_conflict"
    assert error.failure.http == 409
    assert "Choose a new version" in error.message
    assert shelf.registry.metrics().head == before


def test_breaking_change_needs_new_major(shelf: RegistryBench) -> None:
    shelf.put(contract("Order", "1.4.0", schema((), id="string", note="string")))
    error = publish_and_get_error(
        shelf, "Order", "1.5.0", schema(("id",), id="string", note="string")
    )
    assert error.failure.name == "breaking_change"
    assert error.message.startswith("Breaking changes detected without major version bump: ")
    assert "Publish it as 2.0.0" in error.message
    [change] = (error.data or {})["changes"]
    assert change["reason"] == "REQUIRED_FIELD_ADDED"
    assert "id" in change["path"]
    assert shelf.registry.versions("Order") == ["1.4.0"]
    shelf.put(contract("Order", "2.0.0", schema(("id",), id="string", note="string")))
    # A patch for the old major is compared with its own predecessor.
    shelf.put(contract("Order", "1.4.1", schema((), id="string", note="string", more="string")))
    assert shelf.registry.versions("Order") == ["1.4.0", "1.4.1", "2.0.0"]


def proto(field: str, version: str = "1.0.0", name: str = "shop/order.proto") -> Contract:
    head = 'syntax = "proto3";\npackage shop;\n'
    if name == "shop/order.proto":
        document = f'{head}import "shop/line.proto";\nmessage Order {{ {field} }}\n'
    else:
        document = f"{head}message Line {{ {field} }}\n"
    return contract(name, version, document.encode(), domain="shop", protocol="protobuf")


def test_compares_protobuf_with_imports(shelf: RegistryBench) -> None:
    line = proto("string sku = 1;", name="shop/line.proto")
    order = proto("string id = 1; repeated Line lines = 2;")
    # Whichever comes first: what is published together is compiled together.
    shelf.registry.publish_all([order, line], author="x", reason="first")
    shelf.put(proto("string id = 1; repeated Line lines = 2; string note = 3;", "1.1.0"))
    error = get_publish_error(shelf, proto("string id = 5; repeated Line lines = 2;", "1.2.0"))
    assert error.failure.name == "breaking_change"
    assert "FIELD_NUMBER_CHANGED shop.Order.id" in error.message
    shelf.put(proto("string id = 5; repeated Line lines = 2;", "2.0.0"))
    broken = get_publish_error(shelf, proto("string id = ", "2.1.0"))
    assert "cannot be compiled" in broken.message
    made = proto("string sku = 1; string size = 2;", name="shop/line.proto")
    seen = ContractSnapshot(made.name, made.domain, made.protocol, made.document, made.provenance)
    [taken] = shelf.registry.snapshot([seen], author="x", reason=lambda _: "seen")
    assert (taken.previous_version, taken.contract.version) == ("1.0.0", "1.1.0")


def test_publishes_batch_completely_or_not(shelf: RegistryBench) -> None:
    first, second = contract("A", "1.0.0", schema((), id="string")), contract("B", "1.0.0")
    broken = contract("A", "1.1.0", schema(("id",), id="string"))
    with pytest.raises(InterlockError, match="Breaking changes detected"):
        shelf.registry.publish_all([first, second, broken], author="x", reason="all")
    assert shelf.registry.search() == []
    stored = shelf.registry.publish_all([first, second], author="x", reason="all")
    assert [one.name for one in stored] == ["A", "B"]
    assert len(shelf.registry.history()) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "1"}, "Invalid version"),
        ({"name": ""}, "Invalid name of a contract"),
        ({"name": "a\nb"}, "Invalid name of a contract"),
        ({"domain": "x" * 256}, "Invalid domain of a contract"),
        ({"protocol": "xml"}, "Use one of json-schema"),
        ({"document": b"{"}, "is not JSON"),
        ({"document": b"[1]"}, "A JSON Schema must be an object"),
        ({"document": {"type": "strin"}}, "Invalid JSON Schema at /type"),
        ({"document": {"$ref": "https://example.org/x"}}, "not fetched"),
        ({"document": {"$ref": "#/$defs/none"}}, "does not exist"),
        ({"document": b'{"a": "' + b"x" * MAX_DOCUMENT_BYTES + b'"}'}, "The limit is"),
        ({"document": b"[" * 100_000}, "is not JSON"),
        ({"timestamp": "yesterday"}, "Use ISO 8601"),
        ({"document": b"[]", "protocol": "mcp-tool"}, "must be a JSON object"),
    ],
)
def test_rejects_invalid_contracts(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    shelf = RegistryBench(tmp_path / "registry")
    error = publish_and_get_error(shelf, **changes)
    assert said in error.message
    assert not shelf.folder.exists()


@pytest.mark.parametrize(
    "name", ["../up", ".git", "a/b", "-n", "ä ö", "C:\\x", "..", "x" * 255, ".hidden.lock", "%2E"]
)
def test_any_name_has_own_folder(tmp_path: Path, name: str) -> None:
    shelf = RegistryBench(tmp_path / "registry")
    stored = shelf.put(contract(name, "1.0.0", domain=name))
    assert stored.path.count("/") == 2
    assert ".." not in stored.path.split("/")
    assert shelf.registry.find(name, domain=name).name == name
    assert [one.name for one in tmp_path.iterdir()] == ["registry"]
    assert is_clean(shelf.folder)
    shelf.registry.rebuild()
    assert shelf.registry.find(name).domain == name


def test_publishes_large_and_circular_schemas(tmp_path: Path) -> None:
    shelf = RegistryBench(tmp_path / "registry")
    many = {f"property_{n:06}": {"type": "string", "description": "x" * 60} for n in range(100_000)}
    large = contract("Large", "1.0.0", {"type": "object", "properties": many})
    assert len(large.document) > 10_000_000
    assert shelf.put(large).version == "1.0.0"
    assert len(shelf.registry.find("Large").schema()["properties"]) == 100_000
    tree = {
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
        "$ref": "#/$defs/node",
    }
    shelf.put(contract("Tree", "1.0.0", tree))
    told = shelf.registry.validate("Tree", "1.x", {"next": {"next": {"next": 1}}})
    assert [one.path for one in told.errors] == ["/next/next/next"]


def test_rejects_too_expensive_schemas(tmp_path: Path) -> None:
    shelf = RegistryBench(tmp_path / "registry")
    with pytest.raises(InterlockError, match="its patterns are too large"):
        shelf.put(contract("Huge", "1.0.0", {"pattern": "((a{50}){50}){50}"}))
    tried = {"pattern": r"^(a|aa)+\1x$"}
    shelf.put(contract("Tried", "1.0.0", {"items": {"anyOf": [tried] * 10}}))
    assert not shelf.registry.validate("Tried", "1.x", [1]).errors
    with pytest.raises(InterlockError, match="would take too long"):
        shelf.registry.validate("Tried", "1.x", ["a" * 40] * 10)
    places = {"$defs": {"x": {"$id": "x", "type": "string"}}, "$ref": "#/$defs/x"}
    shelf.put(contract("Places", "1.0.0", places))
    with pytest.raises(InterlockError, match="references may lead to several places"):
        shelf.registry.validate("Places", "1.x", "text")


def snapshot(document: dict[str, object]) -> ContractSnapshot:
    made = contract("files.read", "0.0.0", document, domain="upstream.files", protocol="mcp-tool")
    return ContractSnapshot(made.name, made.domain, made.protocol, made.document, made.provenance)


def test_snapshot_gets_version_of_change(shelf: RegistryBench) -> None:
    def tool(description: str, required: tuple[str, ...], **properties: str) -> dict[str, object]:
        return {
            "name": "read",
            "description": description,
            "inputSchema": schema(required, **properties),
        }

    def take(document: dict[str, object]) -> SnapshotResult:
        [taken] = shelf.registry.snapshot(
            [snapshot(document)], author="interlock", reason=lambda new: f"{len(new)} new"
        )
        return taken

    steps = [
        (tool("Reads.", (), path="string"), "1.0.0"),
        (tool("Reads.", (), path="string"), "1.0.0"),
        (tool("Reads a file.", (), path="string"), "1.0.1"),
        (tool("Reads a file.", (), path="string", encoding="string"), "1.1.0"),
        (tool("Reads a file.", ("path",), path="string", encoding="string"), "2.0.0"),
        (tool("Reads a file.", (), path="string", encoding="string"), "2.1.0"),
    ]
    assert [take(document).contract.version for document, _ in steps] == [one for _, one in steps]
    last = take(steps[4][0])
    assert (last.is_new, last.previous_version, last.contract.version) == (True, "2.1.0", "3.0.0")
    assert [one.reason for one in last.changes if one.breaking] == ["REQUIRED_FIELD_ADDED"]
    assert len(shelf.registry.history()) == 6


# -- validating


@pytest.mark.spec("ST-4.6.4-3")
def test_validates_payload_with_paths(shelf: RegistryBench) -> None:
    strict = {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "lines": {"type": "array", "items": schema(("sku",), sku="string", n="integer")},
        },
        "required": ["id"],
        "additionalProperties": False,
    }
    shelf.put(contract("Order", "2.3.0", strict))
    validate = shelf.registry.validate
    good = validate("Order", "2.3.x", {"id": "a", "lines": [{"sku": "s", "n": 1}]})
    assert (good.valid, good.version, good.errors) == (True, "2.3.0", [])
    bad = validate("Order", "2.x", {"id": "a", "lines": [{"sku": "s"}, {"sku": 7}]})
    assert not bad.valid
    assert bad.errors[0].path == "/lines/1/sku"
    assert "string" in bad.errors[0].message
    # What is missing and what is too many is pointed at, too.
    missing = validate("Order", "*", {"x/y~z": 1, "lines": [{}]})
    assert sorted(one.path for one in missing.errors) == ["/id", "/lines/0/sku", "/x~1y~0z"]
    many = validate("Order", "*", {"id": "a", "lines": [1] * 1000})
    assert len(many.errors) == 100
    with pytest.raises(InterlockError, match=r"has no version in 3\.x"):
        validate("Order", "3.x", {})
    assert not validate("Order", "*", None).valid


def test_validates_tool_arguments_and_results(shelf: RegistryBench) -> None:
    tool = {"name": "read", "inputSchema": schema(("path",), path="string")}
    shelf.put(contract("files.read", "1.0.0", tool, domain="upstream.files", protocol="mcp-tool"))
    assert shelf.registry.validate("files.read", "1.x", {"path": "a"}).valid
    assert not shelf.registry.validate("files.read", "1.x", {}).valid
    with pytest.raises(InterlockError, match="no JSON Schema for its output"):
        shelf.registry.validate("files.read", "1.x", {}, part="output")
    shelf.put(contract("Api", "1.0.0", {"openapi": "3.1.0"}, protocol="openapi"))
    with pytest.raises(InterlockError, match="no JSON Schema"):
        shelf.registry.validate("Api", "1.x", {})


# -- ending


@pytest.mark.spec("ST-4.5.4-2")
def test_deprecates_major_version(shelf: RegistryBench) -> None:
    shelf.put(contract("Order", "1.0.0"))
    shelf.put(contract("Order", "2.0.0"))
    registry = shelf.registry
    assert registry.deprecation("Order", 1) is None
    ends = registry.deprecate(
        "Order", 1, author="operator", migration_uri="https://example.org/order-2"
    )
    assert ends.deprecated_at == "2027-01-15T08:00:00Z"
    assert ends.sunset_at == "2027-07-14T08:00:00Z"
    found = registry.find("Order", "1.x")
    assert (found.version, found.deprecation) == ("1.0.0", ends)
    assert registry.find("Order", "2.x").deprecation is None
    assert registry.validate("Order", "1.x", {"id": "a"}).deprecation == ends
    assert registry.supported_majors("Order") == [1, 2]
    shelf.now += 181 * 86_400
    for ask in (
        lambda: registry.find("Order", "1.x"),
        lambda: registry.validate("Order", "^1", {"id": "a"}),
    ):
        with pytest.raises(InterlockError) as raised:
            ask()
        assert raised.value.failure.name == "deprecated_version"
        assert (raised.value.data or {})["migration_uri"] == "https://example.org/order-2"
    # Who names no version gets the newest, and the oldest that is supported is the second.
    assert registry.find("Order").version == "2.0.0"
    assert registry.supported_majors("Order") == [2]
    assert registry.find("Order", "1.x", include_sunset=True).version == "1.0.0"
    assert git(shelf.folder, "log", "-1", "--format=%s").strip() == (
        "Deprecate Order 1.x until 2027-07-14"
    )
    assert is_clean(shelf.folder)


def test_rejects_invalid_deprecations(shelf: RegistryBench) -> None:
    shelf.put(contract("Order", "1.0.0"))

    def end(major: int = 1, **asked: str) -> str:
        with pytest.raises(InterlockError) as raised:
            shelf.registry.deprecate("Order", major, author="x", migration_uri="x:y", **asked)  # type: ignore[arg-type]
        return raised.value.message

    assert "no version in 7.x" in end(7)
    assert "ISO 8601" in end(sunset_at="soon")
    assert "must not be before" in end(deprecated_at="2027-01-02", sunset_at="2027-01-01")
    again = {"author": "x", "migration_uri": "x:y"}
    shelf.registry.deprecate("Order", 1, sunset_at="2028-03-01", **again)  # type: ignore[arg-type]
    shelf.registry.deprecate("Order", 1, sunset_at="2028-04-01", **again)  # type: ignore[arg-type]
    ends = shelf.registry.deprecation("Order", 1, domain="shop")
    assert ends is not None
    assert ends.sunset_at == "2028-04-01T00:00:00Z"
    assert shelf.registry.deprecation("Order", 1, domain="other") is None


@pytest.mark.spec("ST-4.5.4-2")
def test_rejects_early_sunset_without_consent(shelf: RegistryBench) -> None:
    shelf.put(contract("Order", "1.0.0"))
    day = 86_400
    now, at_least = format_utc(shelf.now), format_utc(shelf.now + 90 * day)
    asked = {"author": "x", "migration_uri": "x:y"}
    early = (
        {"sunset_at": now},
        {"sunset_at": format_utc(shelf.now + 90 * day - 1)},
        {"deprecated_at": "2020-01-01"},
        {"deprecated_at": "2020-01-01", "sunset_at": now},
    )
    for times in early:
        with pytest.raises(InterlockError) as raised:
            shelf.registry.deprecate("Order", 1, **asked, **times)  # type: ignore[arg-type]
        assert raised.value.failure.name == "invalid_params"
        assert shelf.registry.deprecation("Order", 1) is None
    assert shelf.registry.deprecate("Order", 1, **asked, sunset_at=at_least).sunset_at == at_least  # type: ignore[arg-type]
    for times in early:
        shelf.registry.deprecate("Order", 1, **asked, **times, allow_early=True)


# -- runs


@pytest.mark.spec("ST-4.6.3-6")
def test_records_pipeline_run(shelf: RegistryBench) -> None:
    first = shelf.registry.record_run(PipelineRun(3, 0, 0.5), author="ci")
    shelf.put(contract("Order", "1.0.0"))
    second = shelf.registry.record_run(PipelineRun(4, 1, 0.25), author="ci", reason="a run")
    assert (first.version, second.version) == (1, 2)
    assert git(shelf.folder, "tag").split() == ["registry-v1", "registry-v2"]
    assert git(shelf.folder, "rev-parse", "registry-v2").strip() == second.commit
    metrics = shelf.registry.metrics()
    assert (metrics.schema_count, metrics.version) == (1, 2)
    assert (metrics.drift_violations, metrics.generation_duration) == (1, 0.25)
    assert metrics.head == second.commit
    assert is_clean(shelf.folder)
