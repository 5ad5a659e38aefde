"""Structs whose fields are written as quickly as those of an ordinary class. Pure.

Every store into a msgspec Struct passes through a function of msgspec's, which looks whether the
garbage collector has to know of the struct from then on. A call is written to about twenty times
on its way, and each time that costs what eight ordinary stores do.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def plain_stores(struct: type[S]) -> type[S]:
    """A decorator. Only for structs that hold an object with references of its own (a callable, a
    connection, a dict) from the moment they are made: the collector knows of those already."""
    # Both, or the interpreter goes a longer way still: they share one slot of the type.
    struct.__setattr__ = object.__setattr__  # type: ignore[method-assign]
    struct.__delattr__ = object.__delattr__  # type: ignore[method-assign]
    return struct
