"""The requirement register: the items in `spec/*.yaml` and their claims in `spec/status.yaml`.

It reads only files below the given folder.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

LEVELS = ("MUST", "SHOULD", "MAY", "FACT", "DECIDE")

Level = Literal["MUST", "SHOULD", "MAY", "FACT", "DECIDE"]


class Spec(NamedTuple):
    """A specification: the file of its items, the prefix of their ids, and its name."""

    file: str
    prefix: str
    title: str


SPECS = (
    Spec("ax.yaml", "AX", "MCP-AX, draft-abbott-mcp-ax-00"),
    Spec("mcpx.yaml", "MX", "MCPx v0.1"),
    Spec("aip32.yaml", "DR", "AIP-32 drivers, with what they inherit"),
    Spec("stack.yaml", "ST", "The typed protocol stack"),
    Spec("aql.yaml", "AQ", "MCP-AQL 1.0.0-draft"),
)


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence of a specification that can be checked."""

    id: str
    level: Level
    says: str
    check: str


class Status(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The claims in `spec/status.yaml`. A key is the id of an item or a section (see `covers`)."""

    done: list[str] = []
    diverges: dict[str, str] = {}
    left_out: dict[str, str] = {}
    later: dict[str, str] = {}
    limits: dict[str, str] = {}


class State(Enum):
    """The state of an item."""

    PROVEN = "proven"
    DIVERGES = "diverges"
    DONE = "done, no test"
    LEFT_OUT = "left out"
    LATER = "later"
    NOT_YET = "not yet"


class Claim(NamedTuple):
    """The claim about one item in the status file."""

    state: State
    reason: str


class RegisterError(Exception):
    """An invalid register or status file. The message says where and why."""


def covers(key: str, item_id: str) -> bool:
    """Return whether a key of the status file covers an item: `AX-4` covers `AX-4.1-2`."""
    return item_id == key or item_id.startswith((f"{key}-", f"{key}."))


def chapter(item_id: str) -> str:
    """Return the part of a specification that contains an item: `AX-4`, `ST-4.2`, `AQ-INT`."""
    prefix, section = item_id.split("-", 1)
    parts = section.rsplit("-", 1)[0].split("-")[0].split(".")
    depth = 2 if prefix == "ST" else 1
    return f"{prefix}-{'.'.join(parts[:depth])}"


def read_items(folder: Path) -> dict[str, Item]:
    """Read all items by id, in the order of the files."""
    items: dict[str, Item] = {}
    for spec in SPECS:
        path = folder / spec.file
        try:
            found = msgspec.yaml.decode(path.read_bytes(), type=list[Item])
        except (OSError, msgspec.DecodeError) as error:
            raise RegisterError(f"{path}: {error}") from error
        for item in found:
            if not item.id.startswith(f"{spec.prefix}-"):
                raise RegisterError(f"{path}: {item.id} does not start with {spec.prefix}-")
            if item.id in items:
                raise RegisterError(f"{path}: {item.id} occurs twice")
            items[item.id] = item
    return items


def read_status(path: Path) -> Status:
    """Read the claims."""
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=Status)
    except (OSError, msgspec.DecodeError) as error:
        raise RegisterError(f"{path}: {error}") from error


def claims(items: dict[str, Item], status: Status) -> dict[str, Claim]:
    """Return the claim about each item. A claim with a reason overrides `done`. An item with a
    limit counts as done within the limit."""
    found: dict[str, Claim] = {}
    for key in status.done:
        for item_id in _covered(key, items):
            found[item_id] = Claim(State.DONE, "")
    for state, reasons in (
        (State.DONE, status.limits),
        (State.DIVERGES, status.diverges),
        (State.LEFT_OUT, status.left_out),
        (State.LATER, status.later),
    ):
        for key, reason in reasons.items():
            if not reason.strip():
                raise RegisterError(f"spec/status.yaml: {key} has no reason")
            for item_id in _covered(key, items):
                earlier = found.get(item_id)
                if earlier is not None and earlier.reason:
                    raise RegisterError(f"spec/status.yaml: {item_id} has two reasons, keep one")
                found[item_id] = Claim(state, " ".join(reason.split()))
    return found


def _covered(key: str, items: dict[str, Item]) -> list[str]:
    found = [item_id for item_id in items if covers(key, item_id)]
    if not found:
        raise RegisterError(f"spec/status.yaml: {key} names no item of spec/*.yaml")
    return found
