"""The checks of an evidence bundle: thirteen required checks, and those of Level 2. Pure.

They check the same as the public runner, with their own code. A test compares both if a checkout of
the runner is available.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from tools.aql_conformance import shapes

Result = Literal["PASS", "FAIL", "WARN", "SKIP"]
Tier = Literal["1", "2", "both"]
Bundle = Mapping[str, Any]

_LOOKS_LIKE_CODE: Final = re.compile(
    r"typeerror|referenceerror|syntaxerror|at\s+\S|/src/|/node_modules/|\.[jt]s:\d", re.IGNORECASE
)
_SNAKE: Final = re.compile(r"[a-z][a-z0-9_]*")


class Test(msgspec.Struct, frozen=True):
    name: str
    result: Result
    detail: str = ""


class Category(msgspec.Struct, frozen=True):
    name: str
    required: bool
    result: Result
    tests: list[Test]


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """The result of the checks. The keys are those of the specification."""

    implementation: str
    version: str
    spec_version: str
    requested_level: int
    conformance_level: int
    summary: dict[str, int]
    categories: list[Category]
    exit_code: int


def evaluate(bundle: Bundle, level: int, tier: Tier = "both", only: str = "") -> Report:
    """Run the checks of a level, or those of one category."""
    categories = [
        _category("Introspection Fidelity", True, _introspection(bundle)),
        _category("Parameter Handling", True, _parameters(bundle)),
        _category("Error Quality", True, _errors(bundle)),
        _category("Round-Trip Integrity", True, _round_trips(bundle)),
    ]
    if level >= 2:
        categories += [
            _category("Level 2 Features", False, _features(bundle)),
            _category("Constraint Documentation", False, _constraints(bundle)),
            _category("Semantic Evaluation", False, _semantics(bundle, tier)),
        ]
    if only:
        categories = [category for category in categories if category.name == only]
    results = [test.result for category in categories for test in category.tests]
    failed = any(category.required and category.result == "FAIL" for category in categories)
    warned = any(
        not category.required and category.result in ("WARN", "FAIL") for category in categories
    )
    return Report(
        implementation=bundle.get("implementation", ""),
        version=bundle.get("version", ""),
        spec_version=bundle.get("spec_version", ""),
        requested_level=level,
        conformance_level=0 if failed else level,
        summary={
            "total": len(results),
            "passed": results.count("PASS"),
            "warned": results.count("WARN"),
            "failed": results.count("FAIL"),
            "skipped": results.count("SKIP"),
        },
        categories=categories,
        exit_code=1 if failed else 2 if warned else 0,
    )


def _category(name: str, required: bool, tests: list[Test]) -> Category:
    results = {test.result for test in tests}
    result: Result
    if "FAIL" in results:
        result = "FAIL" if required else "WARN"
    elif "WARN" in results:
        result = "WARN"
    else:
        result = "PASS" if "PASS" in results else "SKIP"
    return Category(name, required, result, tests)


def _judged(name: str, faults: Iterable[str], bad: Result = "FAIL") -> Test:
    found = list(faults)
    return Test(name, bad, " | ".join(found)) if found else Test(name, "PASS")


# -- required


def _introspection(bundle: Bundle) -> list[Test]:
    told = bundle.get("introspection", {})
    details = told.get("operation_details", [])
    taken = bundle.get("accepted_parameters", {})
    malformed = [
        f"{detail.get('name')}: {wrong}"
        for detail in details
        if (wrong := shapes.problem(detail, shapes.OperationDetails))
    ]
    silent: list[str] = []
    refused: list[str] = []
    for detail in details:
        documented = {each["name"] for each in detail.get("parameters", [])}
        accepted = set(taken.get(detail.get("name"), []))
        silent += [
            f"not documented: {detail['name']}.{name}" for name in sorted(accepted - documented)
        ]
        refused += [
            f"not accepted: {detail['name']}.{name}" for name in sorted(documented - accepted)
        ]
    return [
        _listed("introspect lists operations", told.get("operations_list"), shapes.OperationsList),
        _listed("introspect lists types", told.get("types_list"), shapes.TypesList),
        _judged("Details of operations are valid", malformed),
        _judged(
            "Accepted parameters are documented", silent or refused, "FAIL" if silent else "WARN"
        ),
    ]


def _listed(name: str, answer: Any, shape: type[Any]) -> Test:
    if not isinstance(answer, dict) or answer.get("success") is not True:
        return Test(name, "FAIL", "there is no successful response")
    wrong = shapes.problem(answer.get("data"), shape)
    return _judged(name, [wrong] if wrong else [])


def _parameters(bundle: Bundle) -> list[Test]:
    details = bundle.get("introspection", {}).get("operation_details", [])
    tried = bundle.get("parameter_tests", {})
    missing = {
        (case["operation"], case["parameter"]): case["response"]
        for case in tried.get("missing_required", [])
    }
    lenient = [
        f"{detail['name']}.{parameter['name']}"
        for detail in details
        for parameter in detail.get("parameters", [])
        if parameter.get("required")
        and not _names(missing.get((detail["name"], parameter["name"])), parameter["name"])
    ]
    silent = [
        f"{case['operation']}.{case['parameter']}"
        for case in tried.get("unknown_parameter", [])
        if not _names(case["response"], case["parameter"])
        and not (case["response"].get("success") is True and case["response"].get("warnings"))
    ]
    other = [
        f"{case['operation']}.{case['parameter']}: {case['expected_value']!r} is {value!r}"
        for case in tried.get("optional_defaults", [])
        if not _same(
            value := _at(case["response"], case["expected_value_path"]), case["expected_value"]
        )
    ]
    unusual = [
        f"{detail['name']}.{parameter['name']}"
        for detail in details
        for parameter in detail.get("parameters", [])
        if not _SNAKE.fullmatch(parameter["name"])
    ]
    return [
        _judged("Required parameters are required", lenient),
        _judged("Unknown parameters are reported", silent),
        _judged("Documented defaults are used", other),
        _judged("Parameters are named in snake_case", unusual),
    ]


def _names(response: Any, parameter: str) -> bool:
    """Return whether a response is a failure that names the parameter."""
    if not isinstance(response, dict) or response.get("success") is not False:
        return False
    return parameter in str(response.get("error", {}).get("message", ""))


def _errors(bundle: Bundle) -> list[Test]:
    cases = bundle.get("error_tests", [])
    wrong = {case["name"]: shapes.envelope_problem(case["response"]) for case in cases}
    shaped = [case for case in cases if not wrong[case["name"]]]
    said = {
        case["name"]: str((case["response"].get("error") or {}).get("message", ""))
        for case in shaped
    }
    vague = [
        f"{case['name']}: {fragment}"
        for case in shaped
        for fragment in case.get("must_mention", [])
        if fragment not in said[case["name"]]
    ]
    return [
        _judged("Failures are valid", [f"{n}: {why}" for n, why in wrong.items() if why]),
        _judged(
            "Failures contain no implementation details",
            [name for name, message in said.items() if _LOOKS_LIKE_CODE.search(message)],
        ),
        _judged("Failures suggest a fix", vague, "WARN"),
    ]


def _round_trips(bundle: Bundle) -> list[Test]:
    def lost(cases: str, fields: str) -> list[str]:
        return [
            f"{case['name']}: {path} is {value!r}, not {expected!r}"
            for case in bundle.get(cases, [])
            for path, expected in case.get(fields, {}).items()
            if not _same(value := _at(case["read_response"], path), expected)
        ]

    return [
        _judged("A created resource is read back", lost("round_trip_tests", "expected_fields")),
        _judged(
            "An update changes no other fields",
            lost("update_preservation_tests", "preserved_fields"),
        ),
    ]


# -- Level 2


def _features(bundle: Bundle) -> list[Test]:
    modes = bundle.get("endpoint_modes", [])
    able = bundle.get("capabilities", {})
    batch = bundle.get("batch_example")
    wrong = shapes.envelope_problem(batch) if batch else "there is no batch"
    return [
        _judged(
            "Both endpoint modes are available",
            [f"not {mode}" for mode in ("crude", "single") if mode not in modes],
        ),
        _judged(
            "Fields can be selected",
            [] if able.get("field_selection") else ["it declares no support"],
        ),
        _judged(
            "Operations can be batched",
            ([] if able.get("batch_operations") else ["it declares no support"])
            + ([wrong] if wrong else []),
        ),
    ]


def _constraints(bundle: Bundle) -> list[Test]:
    cases = bundle.get("constraint_tests", [])
    kept = {case["name"]: _names(case.get("response"), "") for case in cases}
    return [
        _judged(
            "Constraints are enforced", [name for name, refused in kept.items() if not refused]
        ),
        _judged(
            "Constraints are documented",
            [c["name"] for c in cases if kept[c["name"]] and c.get("documented") is not True],
            "WARN",
        ),
    ]


def _semantics(bundle: Bundle, tier: Tier) -> list[Test]:
    if tier == "1":
        return [
            Test("Operations are found by a reader", "SKIP", "the second tier was not requested")
        ]
    return [_understood(case) for case in bundle.get("semantic_tests", [])]


def _understood(case: Mapping[str, Any]) -> Test:
    text = _plain(case.get("response_text", ""))
    calls = case.get("tool_calls", [])
    meant = case.get("semantic", {})

    def within(parts: Iterable[str], join: Callable[[Iterable[bool]], bool]) -> bool:
        return join(_plain(part) in text for part in parts)

    structural = within(case.get("structural", {}).get("required_patterns", []), all)
    semantic = (
        all(within(group, any) for group in meant.get("phrase_groups", []))
        and {*meant.get("expected_operations", [])} <= {call.get("operation") for call in calls}
        and all(
            _plain(parameter) in text
            or any(
                _plain(parameter) in _plain(msgspec.json.encode(call.get("params", {})).decode())
                for call in calls
            )
            for parameter in meant.get("expected_parameters", [])
        )
    )
    if semantic:
        return Test(case["name"], "PASS" if structural else "WARN")
    return Test(case["name"], "FAIL", "the operation was not found")


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9_]+", " ", text.lower()).strip()


def _at(value: Any, path: str) -> Any:
    """Return the value at a dotted path, or None."""
    for part in path.split("."):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
