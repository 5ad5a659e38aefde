"""The suite's scenarios for clients, with a node in the client's seat (see client_driver.py).

The numbers say how many different checks pass with the official SDK's own client in the seat: a
node passes as many. `make test` runs some; `make conformance` runs all.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.conformance.suite import REVISIONS, Findings, requirements, run_client

pytestmark = pytest.mark.timeout(1800)

COMMAND = ['"$SEAT_PYTHON"', "-m", "tests.conformance.client_driver"]
ROOT = Path(__file__).parents[2]

_BOTH = {
    "tools_call": 2,
    "json-schema-2020-12-preservation": 9,
    "auth/basic-cimd": 10,
    "auth/pre-registration": 10,
    "auth/client-credentials-basic": 5,
    "auth/client-credentials-jwt": 5,
}
CHECKS = {
    "2025-11-25": _BOTH
    | {
        "initialize": 1,
        "elicitation-sep1034-client-defaults": 5,
        "sse-retry": 3,
        "auth/metadata-default": 15,
        "auth/metadata-var1": 15,
        "auth/metadata-var2": 15,
        "auth/metadata-var3": 15,
        "auth/scope-from-www-authenticate": 11,
        "auth/scope-from-scopes-supported": 11,
        "auth/scope-omitted-when-undefined": 11,
        "auth/scope-step-up": 12,
        "auth/scope-retry-limit": 10,
        "auth/token-endpoint-auth-basic": 16,
        "auth/token-endpoint-auth-post": 16,
        "auth/token-endpoint-auth-none": 16,
    },
    "2026-07-28": _BOTH
    | {
        "request-metadata": 5,  # 8 when its server lists the tool: see UNDECLARED
        "sep-2322-client-request-state": 5,
        "http-standard-headers": 1,
        "http-custom-headers": 5,
        "http-invalid-tool-headers": 5,
        "json-schema-ref-no-deref": 1,
        "auth/metadata-default": 16,
        "auth/metadata-var1": 16,
        "auth/metadata-var2": 16,
        "auth/metadata-var3": 16,
        "auth/scope-from-www-authenticate": 12,
        "auth/scope-from-scopes-supported": 12,
        "auth/scope-omitted-when-undefined": 12,
        "auth/scope-step-up": 14,
        "auth/scope-retry-limit": 11,
        "auth/token-endpoint-auth-basic": 17,
        "auth/token-endpoint-auth-post": 17,
        "auth/token-endpoint-auth-none": 17,
        "auth/resource-mismatch": 2,
        "auth/offline-access-scope": 10,
        "auth/offline-access-not-supported": 12,
        "auth/authorization-server-migration": 14,
        "auth/iss-supported": 12,
        "auth/iss-not-advertised": 12,
        "auth/iss-supported-missing": 8,
        "auth/iss-wrong-issuer": 8,
        "auth/iss-unexpected": 8,
        "auth/iss-normalized": 8,
        "auth/metadata-issuer-mismatch": 3,
    },
}

NOT_DONE = {
    "auth/enterprise-managed-authorization": "identity assertion is not done (docs/sign-in.md)",
    "auth/dpop": "DPoP is not done (docs/sign-in.md)",
    "auth/dpop-nonce": "DPoP is not done (docs/sign-in.md)",
    "auth/wif-jwt-bearer": "assertions of other issuers are not done (docs/sign-in.md)",
}
"""Extensions that the suite does not score. The SDK's own client passes the first of them."""

UNDECLARED = {
    f"sep-2575-client-declares-{name}-capability" for name in ("roots", "sampling", "elicitation")
}
"""Checks of `request-metadata` that the suite skips. Its server lists no tool, so the node rejects
the call, and the server sees only requests of the node itself. These declare no capabilities."""

ALWAYS = {"auth/scope-step-up", "auth/authorization-server-migration"}
"""Scenarios of sign-ins that `make test` runs too."""


_LATER = pytest.mark.skipif(
    not os.environ.get("CONF_ALL"), reason="takes long: make conformance runs it"
)


def _case(revision: str, scenario: str) -> ParameterSet:
    quick = not scenario.startswith("auth/") or scenario in ALWAYS
    name = f"{revision}-{scenario}"
    return pytest.param(revision, scenario, id=name, marks=[] if quick else [_LATER])


EVERY = [_case(revision, scenario) for revision in CHECKS for scenario in CHECKS[revision]]


def run_seat(scenario: str, revision: str, folder: Path, **environ: str) -> Findings:
    """Run one scenario with a node in the seat of the client. Fails unless the scenario passes."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ |= {"SEAT_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(path)}
    seat = run_client(COMMAND, scenario, revision, folder, **environ)
    found = seat.findings
    bad = [check for check, status in found.status.items() if status in ("FAILURE", "WARNING")]
    assert seat.passes, "\n".join([*(found.said(check) for check in bad), seat.log[-3000:]])
    return found


@pytest.mark.parametrize(("revision", "scenario"), EVERY)
def test_node_passes_client_scenarios(
    suite: None, revision: str, scenario: str, tmp_path: Path
) -> None:
    findings = run_seat(scenario, revision, tmp_path)
    passed = {check.id for check in findings.passed}
    assert len(passed) >= CHECKS[revision][scenario]
    skipped = {check.id for check, status in findings.status.items() if status == "SKIPPED"}
    assert skipped - passed == (UNDECLARED if scenario == "request-metadata" else set())


def test_calls_declare_capabilities_of_client(suite: None, tmp_path: Path) -> None:
    """No check of `request-metadata` is skipped once its server lists the tool that is called."""
    findings = run_seat("request-metadata", "2026-07-28", tmp_path, SEAT_LISTS="add_numbers")
    assert set(findings.status.values()) == {"SUCCESS"}, [
        findings.said(check) for check in findings.status
    ]
    assert {check.id for check in findings.passed} > UNDECLARED
    assert len(findings.passed) == 8


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_scenario_is_listed(suite: None, revision: str) -> None:
    demanded = requirements(revision, "client")
    assert set(demanded.scored) <= set(CHECKS[revision])
    assert set(demanded.scored) | set(demanded.unscored) == set(CHECKS[revision]) | set(NOT_DONE)
