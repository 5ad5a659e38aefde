"""Structs with fast attribute writes: still structs, and still collected."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import msgspec
import pytest

from interlock.core.call import Call, Client, Credentials
from interlock.protocol.fast_structs import plain_stores
from interlock.protocol.mcp import Era


@plain_stores
class Sheet(msgspec.Struct, weakref=True):
    name: str
    about: Any = None


def test_is_ordinary_struct() -> None:
    one = Sheet("a")
    one.name = "b"
    one.about = [1]
    assert one == Sheet("b", [1])
    assert msgspec.json.encode(one) == b'{"name":"b","about":[1]}'
    assert msgspec.structs.replace(one, name="c") == Sheet("c", [1])
    del one.about
    with pytest.raises(AttributeError):
        _ = one.about
    with pytest.raises(AttributeError):
        one.other = 1  # type: ignore[attr-defined]


def test_attribute_write_uses_object_setattr() -> None:
    """What the decorator is for: it must not stop working unnoticed."""
    assert Sheet.__setattr__ is object.__setattr__
    assert Call.__setattr__ is object.__setattr__


def test_self_reference_is_collected() -> None:
    one = Sheet("a", {})
    assert gc.is_tracked(one)
    one.about = {"itself": one}
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None


def test_calls_are_tracked_by_collector() -> None:
    client = Client(Era.STATELESS, "2026-07-28")
    call = Call(
        "tools/call", "test", Credentials("local"), client, "s.t",
        on_done=lambda call, outcome, error: None,
    )  # fmt: skip
    assert gc.is_tracked(call)
