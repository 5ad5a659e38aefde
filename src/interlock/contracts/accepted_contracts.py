"""The contracts that drivers serve, as they were accepted, kept in the state folder: a TOOL.md that
changes so that callers break needs a new major version, also when the node was started anew."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from interlock.contracts.changed_tools import Dependents, ToolChange, change_records, in_words
from interlock.contracts.paths import registered_drivers_path
from interlock.contracts.sightings import ChangeRecord
from interlock.core.config import Config
from interlock.core.paths import make_private
from interlock.errors import InterlockError
from interlock.manifests.model import ToolContract
from interlock.primitives.timestamps import format_utc

_log = logging.getLogger("interlock.drivers")


class AcceptedContract(Struct, frozen=True):
    """What callers of a contract rely on."""

    version: str
    digest: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    told: str = ""
    """The digest of the break that the journal has already."""


class BrokenContract(Struct, frozen=True):
    """A contract that is not what was accepted, and breaks callers of that."""

    contract: ToolContract
    accepted: AcceptedContract
    changes: list[ChangeRecord]

    @property
    def sentence(self) -> str:
        one = self.contract
        return (
            f"The contract {one.key} breaks its callers and has no new major version: "
            f"{in_words(self.changes)}. Write version: {one.major + 1}.0.0 in its {one.file.name}, "
            f"take the change back, or accept it: interlock contracts accept {one.id}"
        )

    def shown(self, *, held: bool, drivers: Iterable[str] = ()) -> ToolChange:
        """As an operator sees a tool that broke."""
        try:
            since = self.contract.file.stat().st_mtime
        except OSError:
            since = 0.0
        return ToolChange(
            self.contract.id,
            "",
            format_utc(since),
            self.accepted.version,
            self.contract.version,
            breaking=True,
            held=held,
            changes=self.changes,
            breaks=Dependents(drivers=list(drivers)),
        )


class AcceptedContractStore:
    """Those of one node, on disk. Each question reads them anew: somebody may have accepted one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of(
        cls, config: Config, environ: Mapping[str, str], base_dir: Path
    ) -> AcceptedContractStore:
        path = registered_drivers_path(config, environ, base_dir)
        return cls(path.with_name("driver-contracts.json"))

    def mark(self) -> object:
        """By what it is seen that somebody else wrote them."""
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def broken(self, contracts: Iterable[ToolContract]) -> dict[str, BrokenContract]:
        """Which of these break what was accepted, by their keys. Nothing is kept."""
        known = self._read()
        found = {}
        for one in contracts:
            earlier = known.get(one.key)
            if earlier is not None and (changes := _breaking(earlier, one)):
                found[one.key] = BrokenContract(one, earlier, changes)
        return found

    def take(
        self, contracts: Iterable[ToolContract]
    ) -> tuple[dict[str, BrokenContract], list[BrokenContract]]:
        """Accept what is new or breaks nobody. What breaks, by key, and what of that is news."""
        contracts = list(contracts)
        broken = self.broken(contracts)
        known = self._read()
        fresh = []
        for one in contracts:
            if one.key not in broken:
                known[one.key] = _accepted(one)
            elif known[one.key].told != one.digest:
                known[one.key] = msgspec.structs.replace(known[one.key], told=one.digest)
                fresh.append(broken[one.key])
        self._keep(known)
        return broken, fresh

    def accept(self, contract: ToolContract) -> None:
        """Somebody said that callers have to live with it. Raises InterlockError, OSError."""
        self._write({**self._read(), contract.key: _accepted(contract)})

    def _read(self) -> dict[str, AcceptedContract]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, AcceptedContract])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            name = self._path.name
            _log.warning("%s cannot be read, and is begun anew: %s", name, type(error).__name__)
            return {}

    def _keep(self, known: Mapping[str, AcceptedContract]) -> None:
        try:
            if known or self._path.exists():
                self._write(known)
        except (OSError, InterlockError) as error:
            _log.warning("the contracts that are served cannot be kept on disk: %s", error)

    def _write(self, known: Mapping[str, AcceptedContract]) -> None:
        """Whole or not at all, and only when there is something else to say."""
        content = msgspec.json.encode(dict(known), order="deterministic")
        if self._path.exists() and self._path.read_bytes() == content:
            return
        make_private(self._path.parent)
        written = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        written.write_bytes(content)
        os.replace(written, self._path)


def _accepted(one: ToolContract) -> AcceptedContract:
    return AcceptedContract(one.version, one.digest, one.inputs, one.outputs)


def _breaking(old: AcceptedContract, new: ToolContract) -> list[ChangeRecord]:
    if old.digest == new.digest or (old.inputs, old.outputs) == (new.inputs, new.outputs):
        return []
    # Comparing takes much code, and most contracts never change.
    from interlock.contracts.diff.changes import below, breaking
    from interlock.contracts.diff.schemas import diff_schemas

    # By what they name, as with tools: a new optional field breaks nobody.
    inputs = breaking(diff_schemas(old.inputs, new.inputs, "input", strict=False))
    outputs = breaking(diff_schemas(old.outputs, new.outputs, "output", strict=False))
    return change_records([*below("/inputs", inputs), *below("/outputs", outputs)])
