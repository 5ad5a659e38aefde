"""The accepted contracts of drivers, stored in the state folder.

A breaking change of a TOOL.md needs a new major version, also when it happens while the node is
stopped.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from interlock.contracts.changed_tools import (
    Dependents,
    ToolChange,
    format_changes,
    make_change_records,
)
from interlock.contracts.paths import registered_drivers_path
from interlock.contracts.tool_records import ChangeRecord
from interlock.core.config import Config
from interlock.core.paths import make_private
from interlock.errors import InterlockError
from interlock.manifests.model import ToolContract
from interlock.primitives.timestamps import format_utc

_log = logging.getLogger("interlock.drivers")


class AcceptedContract(Struct, frozen=True, rename={"reported_digest": "told"}):
    """The accepted version of a contract, on which callers rely."""

    version: str
    digest: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    reported_digest: str = ""
    """The digest of the breaking change that is already in the journal."""


class BrokenContract(Struct, frozen=True):
    """A contract with a breaking change that has no new major version."""

    contract: ToolContract
    accepted: AcceptedContract
    changes: list[ChangeRecord]

    @property
    def message(self) -> str:
        contract = self.contract
        return (
            f"The contract {contract.key} has a breaking change but no new major version: "
            f"{format_changes(self.changes)}. Write `version: {contract.major + 1}.0.0` in its "
            f"{contract.file.name}, revert the change, or accept it: "
            f"`interlock contracts accept {contract.id}`"
        )

    def to_tool_change(self, *, is_held: bool, drivers: Iterable[str] = ()) -> ToolChange:
        """Return the change for the status of a node."""
        try:
            changed_at = self.contract.file.stat().st_mtime
        except OSError:
            changed_at = 0.0
        return ToolChange(
            self.contract.id,
            "",
            format_utc(changed_at),
            self.accepted.version,
            self.contract.version,
            breaking=True,
            held=is_held,
            changes=self.changes,
            breaks=Dependents(drivers=list(drivers)),
        )


class AcceptedContractStore:
    """The accepted contracts of one node, on disk.

    Every query reads the file again, because the command line may have accepted a contract.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def from_config(
        cls, config: Config, environ: Mapping[str, str], base_dir: Path
    ) -> AcceptedContractStore:
        path = registered_drivers_path(config, environ, base_dir)
        return cls(path.with_name("driver-contracts.json"))

    def file_version(self) -> object:
        """Return a value that changes when another process writes the file."""
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def find_broken(self, contracts: Iterable[ToolContract]) -> dict[str, BrokenContract]:
        """Return the contracts with a breaking change, by key. Stores nothing."""
        accepted_contracts = self._read()
        broken_contracts = {}
        for contract in contracts:
            accepted_contract = accepted_contracts.get(contract.key)
            if accepted_contract is not None and (
                changes := _find_breaking_changes(accepted_contract, contract)
            ):
                broken_contracts[contract.key] = BrokenContract(
                    contract, accepted_contract, changes
                )
        return broken_contracts

    def update(
        self, contracts: Iterable[ToolContract]
    ) -> tuple[dict[str, BrokenContract], list[BrokenContract]]:
        """Accept contracts that are new or compatible.

        Returns:
            All contracts with a breaking change, by key, and those that the journal does not have
            yet.
        """
        contracts = list(contracts)
        broken = self.find_broken(contracts)
        accepted_contracts = self._read()
        new_breaks = []
        for contract in contracts:
            if contract.key not in broken:
                accepted_contracts[contract.key] = _accept(contract)
            elif accepted_contracts[contract.key].reported_digest != contract.digest:
                accepted_contracts[contract.key] = msgspec.structs.replace(
                    accepted_contracts[contract.key], reported_digest=contract.digest
                )
                new_breaks.append(broken[contract.key])
        self._try_write(accepted_contracts)
        return broken, new_breaks

    def accept(self, contract: ToolContract) -> None:
        """Accept a breaking change. Raises InterlockError, OSError."""
        self._write({**self._read(), contract.key: _accept(contract)})

    def _read(self) -> dict[str, AcceptedContract]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, AcceptedContract])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            name = self._path.name
            _log.warning(
                "accepted contracts: %s is unreadable and is replaced: %s",
                name,
                type(error).__name__,
            )
            return {}

    def _try_write(self, accepted_contracts: Mapping[str, AcceptedContract]) -> None:
        try:
            if accepted_contracts or self._path.exists():
                self._write(accepted_contracts)
        except (OSError, InterlockError) as error:
            _log.warning("accepted contracts: cannot write them to disk: %s", error)

    def _write(self, accepted_contracts: Mapping[str, AcceptedContract]) -> None:
        """Write the file atomically, if its content changed."""
        content = msgspec.json.encode(dict(accepted_contracts), order="deterministic")
        if self._path.exists() and self._path.read_bytes() == content:
            return
        make_private(self._path.parent)
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        temporary.write_bytes(content)
        os.replace(temporary, self._path)


def _accept(contract: ToolContract) -> AcceptedContract:
    return AcceptedContract(contract.version, contract.digest, contract.inputs, contract.outputs)


def _find_breaking_changes(old: AcceptedContract, new: ToolContract) -> list[ChangeRecord]:
    if old.digest == new.digest or (old.inputs, old.outputs) == (new.inputs, new.outputs):
        return []
    # The comparison code is large, and most contracts never change.
    from interlock.contracts.diff.changes import breaking, prefix_paths
    from interlock.contracts.diff.schemas import diff_schemas

    # Not strict: as for tools, a new optional field is compatible.
    inputs = breaking(diff_schemas(old.inputs, new.inputs, "input", strict=False))
    outputs = breaking(diff_schemas(old.outputs, new.outputs, "output", strict=False))
    return make_change_records(
        [*prefix_paths("/inputs", inputs), *prefix_paths("/outputs", outputs)]
    )
