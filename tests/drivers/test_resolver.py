"""The resolver, phases 1 to 3: capability, availability and policy."""

from __future__ import annotations

from typing import Any

import pytest

from interlock import errors
from interlock.drivers.resolver import (
    Candidate,
    DriverCondition,
    Machine,
    SelectionPolicy,
    tag_warnings,
    trusted_policy_tags,
)
from interlock.manifests.model import DriverConstraints, HealthCheck, MachineRequirements
from tests.drivers.driver_decisions import (
    LINUX,
    NOW,
    candidate,
    contract,
    decide,
    driver,
    entry,
    inputs,
    rejection_reasons,
    selected_ids,
)

SEEDED = contract(inputs=inputs("prompt", prompt="string", seed="integer"))


# --- phase 1: who implements it ---


@pytest.mark.spec("DR-30.resolver-1", "DR-30.implements-8")
def test_filters_by_version_kind_and_inputs() -> None:
    of = contract(
        inputs=SEEDED.inputs, driver_constraints=DriverConstraints(forbid=("cli", "banned-sdk"))
    )
    decision = decide(
        candidate("good-mcp"),
        candidate("old-mcp", using=entry(version="^2.0.0")),
        candidate("shell-cli", kind="cli"),
        candidate("banned-sdk", kind="sdk"),
        candidate("narrow-mcp", using=entry(drop_inputs=("seed",))),
        of=of,
        given=("prompt", "seed"),
    )
    assert selected_ids(decision) == ["good-mcp"]
    assert rejection_reasons(decision) == {
        "old-mcp": (1, "tool_unavailable"),
        "shell-cli": (1, "no_route"),
        "banned-sdk": (1, "no_route"),
        "narrow-mcp": (1, "input_unsupported"),
    }
    assert (decision.total, decision.passed_capability, decision.passed_policy) == (5, 1, 1)


@pytest.mark.spec("DR-14.fields-6")
@pytest.mark.parametrize(
    "constraints",
    [
        DriverConstraints(forbid=("mcp",)),
        DriverConstraints(require_kind=("sdk", "http")),
        DriverConstraints(forbid=("a-mcp", "b-mcp@1")),
    ],
)
def test_forbidden_driver_is_never_selected(constraints: DriverConstraints) -> None:
    of = contract(driver_constraints=constraints)
    decision = decide(candidate("a-mcp"), candidate("b-mcp"), of=of)
    assert decision.selected is None
    assert decision.failure is errors.NO_ROUTE
    with_another = decide(candidate("a-mcp"), candidate("c-sdk", kind="sdk"), of=of)
    assert selected_ids(with_another) == ["c-sdk"]


def test_narrow_driver_serves_calls_without_dropped_inputs() -> None:
    narrow = candidate("narrow-mcp", using=entry(drop_inputs=("seed",)))
    assert selected_ids(decide(narrow, of=SEEDED, given=("prompt",))) == ["narrow-mcp"]


def test_rejected_driver_is_not_selected() -> None:
    refused = candidate(
        "a-mcp", condition=DriverCondition(rejection="the server has no tool 'make'")
    )
    decision = decide(refused, candidate("b-mcp"))
    assert selected_ids(decision) == ["b-mcp"]
    assert decision.rejected[0].reason == "the server has no tool 'make'"


# --- phase 2: who is able to ---


@pytest.mark.spec("DR-30.resolver-2")
@pytest.mark.parametrize(
    ("condition", "code"),
    [
        (DriverCondition(install_failed="no npm here"), "install_failed"),
        (DriverCondition(version_problem="0.4 is not in >=0.5"), "version_mismatch"),
        (DriverCondition(authed=False), "auth_required"),
        (DriverCondition(health_failed_at=NOW - 1), "tool_unavailable"),
        (DriverCondition(circuit_open=True), "tool_unavailable"),
    ],
)
def test_unavailable_driver_is_not_selected(condition: DriverCondition, code: str) -> None:
    decision = decide(candidate("a-mcp", condition=condition), candidate("b-mcp"))
    assert selected_ids(decision) == ["b-mcp"]
    assert rejection_reasons(decision) == {"a-mcp": (2, code)}
    assert decision.passed_capability == 1


@pytest.mark.spec("DR-30.resolver-2")
def test_login_only_driver_may_be_selected() -> None:
    assert selected_ids(
        decide(candidate("a-mcp", condition=DriverCondition(authed=False, login_only=True)))
    )


@pytest.mark.spec("DR-30.health-2", "DR-30.health-3")
def test_failed_check_counts_for_one_interval() -> None:
    def left(condition: DriverCondition, every: float | None = None) -> list[str]:
        check = None if every is None else HealthCheck("ping", every=every)
        return selected_ids(decide(candidate("a-mcp", condition=condition, health_check=check)))

    assert left(DriverCondition(health_failed_at=NOW - 240)) == []
    assert left(DriverCondition(health_failed_at=NOW - 360)) == ["a-mcp"]
    assert left(DriverCondition(health_failed_at=NOW - 30), every=20.0) == ["a-mcp"]
    assert left(DriverCondition(health_failed_at=NOW - 30), every=60.0) == []
    # It recovered.
    assert left(DriverCondition(health_failed_at=NOW - 30, health_passed_at=NOW - 10)) == ["a-mcp"]
    assert left(DriverCondition(health_failed_at=NOW - 10, health_passed_at=NOW - 30)) == []


@pytest.mark.spec("DR-30.fields-7")
@pytest.mark.parametrize(
    ("requires", "message"),
    [
        (MachineRequirements(os=("windows",)), "requires windows, this machine is linux"),
        (MachineRequirements(os=("darwin", "windows")), "requires darwin or windows"),
        (MachineRequirements(arch=("arm64",)), "requires arm64, this machine is x64"),
        (MachineRequirements(min_disk_mb=10_001), "10001 MB of disk, 10000 MB are free"),
        (MachineRequirements(min_memory_mb=4_001), "4001 MB of memory, the machine has 4000"),
    ],
)
def test_driver_for_other_machine_is_not_selected(
    requires: MachineRequirements, message: str
) -> None:
    decision = decide(candidate("a-mcp", requires=requires), candidate("b-mcp"))
    assert selected_ids(decision) == ["b-mcp"]
    assert decision.rejected[0].phase == 2
    assert message in decision.rejected[0].reason


def test_driver_for_this_machine_is_selected() -> None:
    fits = MachineRequirements(
        os=("linux",), arch=("x64", "arm64"), min_disk_mb=10_000, min_memory_mb=4_000
    )
    assert selected_ids(decide(candidate("a-mcp", requires=fits))) == ["a-mcp"]


def test_machine_requirements_compare_memory() -> None:
    small = Machine("linux", "arm", 1, 1)
    of = candidate("a-mcp", requires=MachineRequirements(min_memory_mb=512))
    assert selected_ids(decide(of, machine=LINUX)) == ["a-mcp"]
    assert selected_ids(decide(of, machine=small)) == []


@pytest.mark.spec("DR-30.implements-6")
def test_contracts_of_driver_share_sign_in() -> None:
    condition = DriverCondition(authed=False)
    contracts = [contract(id) for id in ("fs-read", "fs-write", "fs-list")]
    entries = [entry(of.id, tool=of.id) for of in contracts]
    one = driver("files-mcp", implements=tuple(entries), region=("eu",), policy_tags=("safe",))
    workspace = SelectionPolicy(region="eu", require=("safe",))

    def ask() -> list[Any]:
        return [
            decide(Candidate(one, using, condition), of=of, workspace=workspace)
            for of, using in zip(contracts, entries, strict=True)
        ]

    assert [decision.failure for decision in ask()] == [errors.AUTH_REQUIRED] * 3
    assert "interlock drivers login files-mcp" in ask()[0].message
    condition.auth_problem = "files-mcp is not signed in. Run `interlock drivers login files-mcp`."
    assert {decision.message for decision in ask()} == {condition.auth_problem}
    assert {decision.rejected[0].reason for decision in ask()} == {condition.auth_problem}
    condition.authed = True
    assert [decision.selected.entry for decision in ask()] == entries
    elsewhere = SelectionPolicy(region="us")
    assert all(
        decide(Candidate(one, using, condition), of=of, workspace=elsewhere).selected is None
        for of, using in zip(contracts, entries, strict=True)
    )


# --- phase 3: who is allowed to ---


@pytest.mark.spec("DR-30.resolver-3", "DR-30.resolver-14")
@pytest.mark.parametrize(
    ("workspace", "left"),
    [
        (SelectionPolicy(), ["both", "eu", "none", "pii"]),
        (SelectionPolicy(forbid=("eu",)), ["none", "pii"]),
        (SelectionPolicy(forbid=("eu", "pii")), ["none"]),
        (SelectionPolicy(require=("eu",)), ["both", "eu"]),
        (SelectionPolicy(require=("eu", "pii")), ["both"]),
        (SelectionPolicy(allow=("eu",)), ["eu", "none"]),
        (SelectionPolicy(allow=("eu", "pii")), ["both", "eu", "none", "pii"]),
        (SelectionPolicy(require=("eu",), allow=("eu",)), ["eu"]),
        (SelectionPolicy(require=("eu",), forbid=("pii",)), ["eu"]),
        # Exact, and case-sensitive.
        (SelectionPolicy(forbid=("EU", "e", "eu2")), ["both", "eu", "none", "pii"]),
    ],
)
def test_policy_tags_filter_drivers(workspace: SelectionPolicy, left: list[str]) -> None:
    tags = {"none": (), "eu": ("eu",), "pii": ("pii",), "both": ("eu", "pii")}
    made = [candidate(id, policy_tags=said) for id, said in tags.items()]
    decision = decide(*made, workspace=workspace)
    assert selected_ids(decision) == left
    assert decision.passed_policy == len(left)
    assert all(why == (3, "policy_violation") for why in rejection_reasons(decision).values())


@pytest.mark.spec("DR-30.security-2")
def test_untrusted_tag_does_not_satisfy_requirement() -> None:
    workspace = SelectionPolicy(require=("pii-safe",), trusted_tags={"pii-safe": ("known-mcp",)})
    liar, known = (candidate(id, policy_tags=("pii-safe",)) for id in ("liar-mcp", "known-mcp"))
    assert selected_ids(decide(liar, known, workspace=workspace)) == ["known-mcp"]
    assert trusted_policy_tags(liar.driver, workspace) == ()
    assert "liar-mcp" in tag_warnings(liar.driver, workspace)[0]
    assert tag_warnings(known.driver, workspace) == []
    # What it says against itself is believed.
    against = SelectionPolicy(forbid=("pii-safe",), trusted_tags={"pii-safe": ("known-mcp",)})
    assert selected_ids(decide(liar, known, workspace=against)) == []


@pytest.mark.spec("DR-30.resolver-3", "DR-30.resolver-8")
@pytest.mark.parametrize(
    ("region", "expected", "passes"),
    [
        (("eu",), None, True),
        (("eu",), "eu", True),
        (("us", "eu"), "eu", True),
        (("global",), "eu", True),
        (("eu",), "EU", False),
        (("eu-west",), "eu", False),
        (("self-hosted",), "eu", False),
    ],
)
def test_region_matches_exactly_or_global(
    region: tuple[str, ...], expected: str | None, passes: bool
) -> None:
    decision = decide(candidate("a-mcp", region=region), workspace=SelectionPolicy(region=expected))
    assert (decision.selected is not None) is passes
    if not passes:
        assert rejection_reasons(decision) == {"a-mcp": (3, "region_mismatch")}


@pytest.mark.spec("DR-30.resolver-11")
def test_global_region_is_accepted_unless_strict() -> None:
    anywhere = candidate("a-mcp", region=("global",))
    assert selected_ids(decide(anywhere, workspace=SelectionPolicy(region="EU"))) == ["a-mcp"]
    strict = decide(anywhere, workspace=SelectionPolicy(region="EU", strict_region=True))
    assert strict.failure is errors.NO_ROUTE_IN_REGION
    assert "EU" in strict.message
    # Where the region is not to blame, it is not blamed.
    other = decide(
        candidate("a-mcp", policy_tags=("bad",)),
        workspace=SelectionPolicy(region="EU", forbid=("bad",)),
    )
    assert other.failure is errors.NO_ROUTE


def test_rejection_message_names_driver_once() -> None:
    decision = decide(candidate("it", condition=DriverCondition(health_failed_at=NOW - 1)))
    assert decision.message.endswith("it@1: its last health check failed.")
