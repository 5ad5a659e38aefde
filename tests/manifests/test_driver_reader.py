"""DRIVER.md: the fields of every driver (AIP-30)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.config.problems import ConfigError
from interlock.manifests.document import Caution
from interlock.manifests.driver_reader import parse_driver, read_driver
from interlock.manifests.model import Cost, MachineRequirements, Retry
from tests.manifests.texts import (
    GONE,
    driver,
    driver_text,
    driver_values,
    entry,
    find_problem,
    only,
    read,
    text_of,
    write,
)

# -- required fields


@pytest.mark.spec("DR-30.fields-1")
@pytest.mark.parametrize("name", ["name", "id", "description", "version", "kind", "implements"])
def test_names_missing_required_field(name: str) -> None:
    problems = read(**{name: GONE}).problems
    assert any(p.message == f"{name} is missing" and p.hint == f"add {name}" for p in problems)


@pytest.mark.spec("DR-30.fields-1")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", ""),
        ("name", "x" * 81),
        ("name", 5),
        ("id", "x"),
        ("id", "X-mcp"),
        ("id", "-mcp"),
        ("id", "a_b"),
        ("id", "a" * 81),
        ("description", ""),
        ("description", "x" * 2001),
        ("version", "1.0"),
        ("version", 1.0),
        ("version", "01.0.0"),
        ("version", "v1.0.0"),
        ("kind", "grpc"),
        ("implements", []),
        ("implements", {}),
    ],
)
def test_names_invalid_required_field(name: str, value: Any) -> None:
    reading = read(**{name: value})
    assert reading.value is None
    assert {problem.path for problem in reading.problems} == {name}


@pytest.mark.spec("DR-30.fields-1")
def test_accepts_required_fields_at_limits() -> None:
    result = driver(name="x" * 80, id="a" * 80, description="x" * 2000, version="1.2.3-beta.1+b7")
    assert (len(result.name), len(result.id), len(result.description)) == (80, 80, 2000)
    assert driver(id="a1").key == "a1@1"


@pytest.mark.spec("DR-30.fields-2")
@pytest.mark.parametrize("kind", ["cli", "http", "sdk", "builtin"])
def test_reads_other_kinds_without_server(kind: str) -> None:
    result = driver(kind=kind, server=GONE, transport=GONE, bin="gh")
    assert result.kind == kind
    assert result.server is None
    assert result.implements[0].mcp is None


# -- optional fields


@pytest.mark.spec("DR-30.fields-3", "DR-30.fields-4")
def test_applies_defaults() -> None:
    result = driver()
    assert result.egress == ()
    assert result.region == ("global",)
    assert result.policy_tags == ()
    assert result.tags == ()
    assert result.cost is None
    assert result.retry is None
    assert result.timeout_override_ms is None
    assert result.requires == MachineRequirements()
    assert result.metadata == {}


@pytest.mark.spec("DR-30.fields-3")
def test_reads_network() -> None:
    assert driver(network={}).egress == driver(network={"egress": []}).egress == driver().egress
    assert driver(network={"egress": ["a.example"], "ingress": ["x"]}).egress == ("a.example",)
    assert "unknown key" in only(read(network={"egres": []}), "network.egres")


@pytest.mark.parametrize(
    ("pattern", "fine"),
    [
        ("api.example.com", True),
        ("*.example.com", True),
        ("API.example.com:8443", True),
        ("localhost:1", True),
        ("10.1.2.3", True),
        ("[::1]:80", True),
        ("*", True),
        ("https://api.example.com", False),
        ("10.0.0.0/8", False),
        ("api.*.com", False),
        ("*example.com", False),
        ("a b", False),
        ("", False),
    ],
)
def test_checks_egress_patterns(pattern: str, fine: bool) -> None:
    assert (read(network={"egress": [pattern]}).value is not None) is fine


@pytest.mark.spec("DR-30.fields-4")
@pytest.mark.parametrize("name", ["tags", "policy_tags"])
@pytest.mark.parametrize(
    ("value", "path"),
    [
        (["Upper"], "[0]"),
        (["-a"], "[0]"),
        (["a" * 65], "[0]"),
        (["a_b"], "[0]"),
        (["a", "b", "a"], ""),
        ("a", ""),
    ],
)
def test_checks_tags(name: str, value: Any, path: str) -> None:
    only(read(**{name: value}), name + path)
    assert getattr(driver(**{name: ["a", "0-b", "x" * 64]}), name) == ("a", "0-b", "x" * 64)


@pytest.mark.spec("DR-30.fields-5")
def test_reads_cost_of_driver_and_entry() -> None:
    result = driver(
        cost_override={"cost_units_per_call": 9, "cost_class": "metered", "currency": "EUR"},
        implements=[
            entry("a.b", cost_override={"cost_units_per_call": 4}),
            entry("c.d"),
        ],
    )
    assert result.cost == Cost("metered", 9, "EUR")
    assert [item.cost for item in result.implements] == [Cost(units_per_call=4), None]
    assert driver().cost is None


@pytest.mark.spec("DR-30.fields-5")
@pytest.mark.parametrize(
    "cost",
    [{"cost_class": "cheap"}, {"cost_units_per_call": -1}, {"currency": "euro"}, {"price": 1}],
)
def test_rejects_invalid_cost(cost: dict[str, Any]) -> None:
    (key,) = cost
    only(read(cost_override=cost), f"cost_override.{key}")
    inner = read(implements=[entry(cost_override=cost)])
    only(inner, f"implements[0].cost_override.{key}")


@pytest.mark.spec("DR-30.fields-6")
@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"timeout_override_ms": 99}, "timeout_override_ms"),
        ({"timeout_override_ms": "1s"}, "timeout_override_ms"),
        ({"retry_override": {"max_attempts": 11}}, "retry_override.max_attempts"),
        ({"retry_override": {"max_attempts": 0}}, "retry_override.max_attempts"),
        ({"retry_override": {"max_attempts": 2, "backoff": "linear"}}, "retry_override.backoff"),
        ({"retry_override": {"max_attempts": 2, "initial_ms": -1}}, "retry_override.initial_ms"),
    ],
)
def test_rejects_invalid_timeouts_and_retries(changes: dict[str, Any], path: str) -> None:
    only(read(**changes), path)


@pytest.mark.spec("DR-30.fields-6")
def test_accepts_timeouts_and_retries_at_limits() -> None:
    retry = {"max_attempts": 10, "backoff": "exponential", "initial_ms": 0}
    result = driver(timeout_override_ms=100, retry_override=retry)
    assert result.timeout_override_ms == 100
    assert result.retry == Retry(10, "exponential", 0)


def test_reads_machine_requirements() -> None:
    result = driver(
        requires={
            "os": ["linux", "darwin", "windows"],
            "arch": ["x64", "arm64", "x86", "arm"],
            "min_disk_mb": 10,
            "min_memory_mb": 0,
        }
    )
    assert result.requires.os == ("linux", "darwin", "windows")
    assert result.requires.min_disk_mb == 10
    only(read(requires={"os": ["bsd"]}), "requires.os[0]")
    only(read(requires={"arch": ["mips"]}), "requires.arch[0]")


@pytest.mark.spec("DR-30.fields-8")
def test_reads_runner() -> None:
    assert driver().engine == "subprocess"
    assert driver(runner={"engine": "docker", "limits": {"cpu": 1}}).engine == "docker"
    assert driver(runner="./RUNNER.md").runner == "./RUNNER.md"
    assert "text or keys and values" in only(read(runner=5), "runner")


@pytest.mark.spec("DR-30.fields-9")
def test_reads_examples_and_metadata() -> None:
    result = driver(
        examples=[{"goal": "read it", "note": "slowly"}],
        metadata={"other": {"x": [1, {"y": None}]}},
    )
    assert result.metadata == {"other": {"x": [1, {"y": None}]}}
    assert "goal is missing" in only(read(examples=[{"note": "x"}]), "examples[0]")


# -- entries


@pytest.mark.spec("DR-30.implements-1", "DR-32.schema-2")
def test_reads_entry_fields() -> None:
    result = driver(
        implements=[
            entry(
                "./tools/fs-read/TOOL.md",
                schema_narrowing={"drop_inputs": ["encoding"], "drop_outputs": ["mime"]},
                mapping={"path": "file", "encoding": {"from": "charset", "transform": "upper"}},
                cost_override={"cost_units_per_call": 0.5},
                timeout_override_ms=2000,
                retry_override={"max_attempts": 2},
                metadata={"mcp": {"tool_name": "read_file"}, "other": {"x": 1}},
            )
        ]
    ).implements[0]
    assert result.drop_inputs == ("encoding",)
    assert result.drop_outputs == ("mime",)
    assert result.mapping["path"] == "file"
    assert result.mapping["encoding"].transform == "upper"  # type: ignore[union-attr]
    assert result.metadata["other"] == {"x": 1}
    invalid = read(implements=[entry(mappings={})])
    assert 'did you mean "mapping"?' in only(invalid, "implements[0].mappings")
    for name in ("tool", "version"):
        assert f"{name} is missing" in only(
            read(implements=[entry(**{name: GONE})]), "implements[0]"
        )


def test_keeps_line_of_entry() -> None:
    result = driver(implements=[entry("a.b"), entry("c.d")])
    first, second = result.implements
    rows = driver_text(implements=[entry("a.b"), entry("c.d")]).splitlines()
    assert rows[first.line - 1].strip() == "- tool: a.b"
    assert rows[second.line - 1].strip() == "- tool: c.d"


@pytest.mark.parametrize("text", ["^^1", "one", ">=", "1.0.0 -", "^1.0.0 ||| 2", "1.2.3.4"])
def test_rejects_invalid_version_range(text: str) -> None:
    assert "range" in only(read(implements=[entry(version=text)]), "implements[0].version")


def test_rejects_duplicate_contract() -> None:
    assert "implemented twice" in only(read(implements=[entry(), entry()]), "implements[1].tool")


@pytest.mark.parametrize("value", [{"form": "a"}, {}, {"from": "a", "with": "b"}])
def test_rejects_invalid_long_mapping(value: dict[str, str]) -> None:
    reading = read(implements=[entry(mapping={"a": value})])
    assert all(p.path.startswith("implements[0].mapping.a") for p in reading.problems)
    assert reading.problems


# -- the whole


@pytest.mark.spec("DR-32.schema-2")
def test_warns_about_unknown_keys() -> None:
    reading = read(regions=["x"], sandbox={"fs": {}}, spec="agentdriver/v1")
    assert reading.value is not None
    sentences = [c.sentence for c in reading.cautions if c.code == "unknown_field"]
    assert len(sentences) == 2
    assert any('did you mean "region"?' in sentence for sentence in sentences)
    other_kind = read(kind="cli", server=GONE, transport=GONE, bin="x", sandbox={}, regon=[])
    assert [c.code for c in other_kind.cautions if c.code == "unknown_field"] == ["unknown_field"]


def test_suggests_required_field_for_typo() -> None:
    (problem,) = read(description=GONE, descripton="Reads files.").problems
    assert problem.message == "description is missing"
    assert '"descripton"' in problem.hint


def test_reports_all_problems_with_lines() -> None:
    text = (
        "---\nname: X\nid: A\ndescription: d\nversion: 1.0.0\nkind: http\n"
        "tags: [a, a]\nimplements:\n  - tool: a\n    verison: '1'\n---\n"
    )
    with pytest.raises(ConfigError) as caught:
        read_driver(text, file=Path("a/DRIVER.md"))
    result = [(problem.line, problem.column, problem.path) for problem in caught.value.problems]
    assert result == [(3, 1, "id"), (7, 1, "tags"), (10, 5, "implements[0].verison")]
    data = caught.value.data
    assert data is not None
    assert len(data["problems"]) == 3
    assert str(caught.value).startswith('a/DRIVER.md:3:1: id: "A" is not the id of a driver')


def test_reads_file_with_digest_and_code(tmp_path: Path) -> None:
    path = write(
        tmp_path / "files-mcp" / "DRIVER.md", driver_text(implements=[entry(metadata=GONE)])
    )
    with pytest.raises(ConfigError, match=r"no driver\.py serves it"):
        read_driver(path)
    write(tmp_path / "files-mcp" / "driver.py", "")
    cautions: list[Caution] = []
    result = read_driver(path, cautions=cautions)
    assert len(result.digest) == 64
    assert result.folder == tmp_path / "files-mcp"


def test_reports_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_driver(tmp_path / "DRIVER.md")


# A letter first: the library that writes the texts takes 08 for one, and leaves the quotes away.
names = st.from_regex(r"[a-z][a-z0-9]{1,19}", fullmatch=True)


@given(
    id=names,
    version=st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)),
    description=st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=100).map(
        "x ".__add__
    ),
    tags=st.lists(names, max_size=4, unique=True),
    tools=st.lists(names, min_size=1, max_size=4, unique=True),
)
def test_driver_survives_round_trip(
    id: str, version: tuple[int, int, int], description: str, tags: list[str], tools: list[str]
) -> None:
    values = driver_values(
        id=id,
        version=".".join(str(number) for number in version),
        description=description,
        tags=tags,
        implements=[entry(tool) for tool in tools],
    )
    result = parse_driver(text_of(values), Path("x/DRIVER.md")).unwrap()
    assert result.id == id
    assert result.major == version[0]
    assert result.description == description
    assert result.tags == tuple(tags)
    assert [item.tool for item in result.implements] == tools
    assert result.source == values


@given(
    st.dictionaries(
        st.sampled_from([*driver_values(), "auth", "network", "x"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(max_size=5)
        | st.lists(st.text(max_size=3), max_size=2)
        | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        max_size=4,
    )
)
def test_reads_or_rejects_any_values(changes: dict[str, Any]) -> None:
    reading = read(**changes)
    assert (reading.value is None) == bool(reading.problems)
    for problem in reading.problems:
        assert problem.message
        assert problem.hint


def test_finds_problem_by_path() -> None:
    assert find_problem(read(id="A").problems, "id").line == 3
