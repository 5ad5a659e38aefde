"""Validation of payloads against schemas of the contract registry. Each error has the path of the
invalid member. Schemas are compiled once, and never fetch anything."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

import jsonschema_rs
from jsonschema_rs import ValidationErrorKind

from interlock.contracts.registry.records import PayloadProblem, invalid_request
from interlock.primitives.bounded_dict import BoundedDict
from interlock.protocol.schema_cost import BACKTRACK_LIMIT, UNEXPLAINED, SchemaWork, collect_errors

MAX_ERRORS: Final = 100
_MAX_VALIDATORS: Final = 256
_MAX_MESSAGE_LENGTH: Final = 500
_PATTERN_OPTIONS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)


class ValidatorCache:
    """Compiled schemas, by the digest of their source."""

    def __init__(self, limit: int = _MAX_VALIDATORS) -> None:
        self._validators: BoundedDict[str, tuple[Any, SchemaWork]] = BoundedDict(limit)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._validators)

    def check(self, key: str, schema: Any, payload: Any) -> list[PayloadProblem]:
        """Return the first errors of a payload. Raises InterlockError for a schema that cannot
        be used."""
        validator, work = self._validator(key, schema)
        if work.problem:
            raise invalid_request(f"This JSON Schema cannot validate payloads: {work.problem}.")
        if not work.can_validate_value(payload):
            raise invalid_request(
                "Validating this payload by its JSON Schema would take too long. Simplify the "
                "schema."
            )
        if validator.is_valid(payload):
            return []
        errors = collect_errors(validator, schema, payload, MAX_ERRORS)
        if errors is None:
            return [PayloadProblem("", UNEXPLAINED)]
        problems: list[PayloadProblem] = []
        for error in errors:
            for path in _member_paths(error):
                if len(problems) == MAX_ERRORS:
                    return problems
                message = error.message[:_MAX_MESSAGE_LENGTH]
                problems.append(
                    PayloadProblem("".join(f"/{_pointer_step(step)}" for step in path), message)
                )
        return problems

    def _validator(self, key: str, schema: Any) -> tuple[Any, SchemaWork]:
        with self._lock:
            validator = self._validators.touch(key)
            if validator is not None:
                return validator
        validator = compile_schema(schema), SchemaWork(schema, any_size=True)
        with self._lock:
            self._validators[key] = validator
        return validator


def compile_schema(schema: Any) -> Any:
    """Return the validator of a schema. Raises InterlockError for an invalid schema."""
    if not isinstance(schema, dict | bool):
        raise invalid_request("A JSON Schema must be an object, true or false.")
    excessive = SchemaWork(schema, any_size=True).compile_problem
    if excessive:
        raise invalid_request(f"Using this JSON Schema would take too long: {excessive}.")
    try:
        return jsonschema_rs.validator_for(
            schema, retriever=_reject_retrieval, pattern_options=_PATTERN_OPTIONS
        )
    except jsonschema_rs.ValidationError as error:
        where = "".join(f"/{_pointer_step(step)}" for step in error.instance_path) or "its root"
        raise invalid_request(
            f"Invalid JSON Schema at {where}: {error.message[:_MAX_MESSAGE_LENGTH]}",
            path=where,
        ) from None
    except (jsonschema_rs.ReferencingError, ValueError, RecursionError) as error:
        message = str(error).partition("\n")[0][:_MAX_MESSAGE_LENGTH]
        raise invalid_request(f"This JSON Schema cannot be used: {message}") from None


def _reject_retrieval(uri: str) -> Any:
    raise ValueError(
        f"it refers to {uri}, and external schemas are not fetched: put it under $defs"
    )


def _member_paths(error: jsonschema_rs.ValidationError) -> Iterator[list[str | int]]:
    """Yield the paths of the members that an error is about, including missing and unexpected
    members."""
    kind = error.kind
    if isinstance(kind, ValidationErrorKind.Required):
        yield [*error.instance_path, kind.property]
    elif isinstance(
        kind, ValidationErrorKind.AdditionalProperties | ValidationErrorKind.UnevaluatedProperties
    ):
        for name in kind.unexpected:
            yield [*error.instance_path, name]
    else:
        yield error.instance_path


def _pointer_step(step: str | int) -> str:
    """Escape a step of a JSON pointer."""
    return str(step).replace("~", "~0").replace("/", "~1")
