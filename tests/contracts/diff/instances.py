"""Instances of a schema from `hypothesis-jsonschema`.

That package makes objects with a part of Hypothesis which no longer has the method it calls. Until
it learns the new way, it is given one that has both.
"""

from __future__ import annotations

from typing import Any

import hypothesis_jsonschema._from_schema as generator
from hypothesis import strategies as st
from hypothesis.internal.conjecture import utils
from hypothesis_jsonschema import from_schema


class _Many:
    """An adapter of `many` that draws one element at a time."""

    def __init__(self, data: Any, **sizes: Any) -> None:
        self._many: Any = utils.many(data, **sizes)
        self._many.__enter__()
        self._steps = iter(self._many)

    def more(self) -> bool:
        try:
            next(self._steps)
        except StopIteration:
            self._many.__exit__(None, None, None)
            return False
        return True

    def reject(self, why: str | None = None) -> None:
        self._many.reject(why)


class _Utils:
    many = _Many

    def __getattr__(self, name: str) -> Any:
        return getattr(utils, name)


if not hasattr(utils.many, "more"):
    generator.cu = _Utils()  # type: ignore[assignment, attr-defined]


def instances(schema: Any) -> st.SearchStrategy[Any]:
    """Return a strategy of valid instances of a draft 7 schema."""
    strategy: st.SearchStrategy[Any] = from_schema(schema)
    return strategy
