"""The validation service of the contract registry: a payload against a schema, every problem with
the path of the member that is wrong. Schemas are compiled once, and never fetch anything."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

import jsonschema_rs
from jsonschema_rs import ValidationErrorKind

from interlock.contracts.registry.records import PayloadProblem, refused
from interlock.primitives.bounded_dict import BoundedDict
from interlock.protocol.schema_cost import BACKTRACK_LIMIT, UNEXPLAINED, SchemaWork, collect_errors

MOST_ERRORS: Final = 100
_MOST_KEPT: Final = 256
_MOST_CHARACTERS: Final = 500
_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)


class Validators:
    """Compiled schemas, by the digest of what they were made of."""

    def __init__(self, most: int = _MOST_KEPT) -> None:
        self._kept: BoundedDict[str, tuple[Any, SchemaWork]] = BoundedDict(most)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def check(self, key: str, schema: Any, payload: Any) -> list[PayloadProblem]:
        """What is wrong with the payload, at most so much. Raises InterlockError for a schema that
        cannot be used."""
        validator, work = self._validator(key, schema)
        if work.problem:
            raise refused(f"No payload can be validated by this JSON Schema: {work.problem}.")
        if not work.can_validate_value(payload):
            raise refused("To validate this payload by its JSON Schema would take too long.")
        if validator.is_valid(payload):
            return []
        errors = collect_errors(validator, schema, payload, MOST_ERRORS)
        if errors is None:
            return [PayloadProblem("", UNEXPLAINED)]
        found: list[PayloadProblem] = []
        for error in errors:
            for path in _paths(error):
                if len(found) == MOST_ERRORS:
                    return found
                message = error.message[:_MOST_CHARACTERS]
                found.append(PayloadProblem("".join(f"/{_step(step)}" for step in path), message))
        return found

    def _validator(self, key: str, schema: Any) -> tuple[Any, SchemaWork]:
        with self._lock:
            found = self._kept.touch(key)
            if found is not None:
                return found
        found = compiled(schema), SchemaWork(schema, any_size=True)
        with self._lock:
            self._kept[key] = found
        return found


def compiled(schema: Any) -> Any:
    """What checks payloads by a schema. Raises InterlockError for one that is none."""
    if not isinstance(schema, dict | bool):
        raise refused("A JSON Schema is an object, or true or false.")
    excessive = SchemaWork(schema, any_size=True).compile_problem
    if excessive:
        raise refused(f"To use this JSON Schema would take too long: {excessive}.")
    try:
        return jsonschema_rs.validator_for(
            schema, retriever=_no_retrieval, pattern_options=_PATTERNS
        )
    except jsonschema_rs.ValidationError as error:
        where = "".join(f"/{_step(step)}" for step in error.instance_path) or "its root"
        raise refused(
            f"This is no JSON Schema: at {where}, {error.message[:_MOST_CHARACTERS]}",
            path=where,
        ) from None
    except (jsonschema_rs.ReferencingError, ValueError, RecursionError) as error:
        sentence = str(error).partition("\n")[0][:_MOST_CHARACTERS]
        raise refused(f"This JSON Schema cannot be used: {sentence}") from None


def _no_retrieval(uri: str) -> Any:
    raise ValueError(f"it refers to {uri}, and nothing is fetched: put it under $defs")


def _paths(error: jsonschema_rs.ValidationError) -> Iterator[list[str | int]]:
    """Where the members are that an error is about, also those that are missing or too many."""
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


def _step(step: str | int) -> str:
    """A step of a JSON pointer."""
    return str(step).replace("~", "~0").replace("/", "~1")
