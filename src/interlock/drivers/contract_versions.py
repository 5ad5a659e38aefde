"""Several majors of a contract side by side: what they are called, and when the old ones end.

Every major is `v1.image.create`, `v2.image.create`. The bare name belongs to the oldest that is
still served, so that whoever called it first goes on calling the same. After its sunset a major is
not offered any more, and a call of it says where to go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from interlock.contracts.registry import records
from interlock.errors import DEPRECATED_VERSION, InterlockError
from interlock.manifests.model import ToolContract
from interlock.manifests.ranges import newest
from interlock.primitives.timestamps import format_utc_ms

WINDOW: Final = 180 * 86_400.0
"""How long a major is served after it was deprecated, unless somebody says otherwise."""
_PREFIXED: Final = re.compile(r"v(0|[1-9][0-9]{0,8})\.(.+)")


class MajorDeprecation(Struct, frozen=True):
    """The end of a major. Times are seconds since 1970."""

    deprecated_at: float
    sunset_at: float | None = None
    migration_uri: str = ""

    @property
    def ends_at(self) -> float:
        return self.deprecated_at + WINDOW if self.sunset_at is None else self.sunset_at

    def notice(self) -> dict[str, Any]:
        """What callers are told while it is still served."""
        told = {
            "deprecated_at": format_utc_ms(self.deprecated_at),
            "sunset_at": format_utc_ms(self.ends_at),
        }
        return {**told, "migration_uri": self.migration_uri} if self.migration_uri else told


NO_DEPRECATIONS: Final[Mapping[str, MajorDeprecation]] = {}


def registered_deprecations(
    contracts: Iterable[ToolContract], registered: Mapping[str, records.Deprecation]
) -> dict[str, MajorDeprecation]:
    """Which of these contracts end, by `id@major`, as the registry has it."""
    return {
        contract.key: MajorDeprecation(
            records.moment_of(end.deprecated_at),
            records.moment_of(end.sunset_at),
            end.migration_uri,
        )
        for contract in contracts
        if (end := registered.get(contract.key)) is not None
    }


class ContractVersions:
    """All majors of all contracts at one moment."""

    def __init__(
        self,
        contracts: Iterable[ToolContract],
        deprecations: Mapping[str, MajorDeprecation] = NO_DEPRECATIONS,
        now: float = 0.0,
    ) -> None:
        """`deprecations`: by `id@major`."""
        self.names: dict[str, ToolContract] = {}
        """Everything that is offered, by name."""
        self.clashes: list[str] = []
        """Names that two contracts would have."""
        self._ended: dict[str, tuple[ToolContract, MajorDeprecation]] = {}
        self._deprecations = deprecations
        majors = _majors(contracts)
        for id in sorted(majors):
            self._give(id, majors[id], now)
        # The own id of a contract may look like a major of another: it was there first.
        for id in majors:
            for major, contract in majors[id].items():
                name = versioned_name(id, major)
                if len(majors[id]) > 1 and name in majors:
                    self.clashes.append(
                        f"{name} is a contract's id and the name of {contract.key}: rename one."
                    )

    def find(self, name: str) -> ToolContract | None:
        """The contract that a name means. None: there is none.

        Raises InterlockError (deprecated_version) for one that has ended.
        """
        found = self.names.get(name)
        if found is not None:
            return found
        ended = self._ended.get(name)
        if ended is None:
            # A contract with one major is listed under its bare name, and answers to both.
            shaped = _PREFIXED.fullmatch(name)
            if shaped is not None:
                found = self.names.get(shaped[2])
                if found is not None and found.id == shaped[2] and found.major == int(shaped[1]):
                    return found
                ended = self._ended.get(shaped[2])
                if ended is not None and ended[0].major != int(shaped[1]):
                    ended = None
        if ended is None:
            return None
        raise deprecated(name, *ended)

    def deprecation_of(self, contract: ToolContract) -> MajorDeprecation | None:
        """Set: the major ends, and callers are to be told."""
        return self._deprecations.get(contract.key)

    def _give(self, id: str, majors: dict[int, ToolContract], now: float) -> None:
        served: list[ToolContract] = []
        for major in sorted(majors):
            contract = majors[major]
            end = self._deprecations.get(contract.key)
            name = versioned_name(id, major)
            if end is not None and end.ends_at <= now:
                self._ended[name] = contract, end
            else:
                served.append(contract)
                if len(majors) > 1:
                    self.names.setdefault(name, contract)
        if served:
            self.names[id] = served[0]
        else:
            newest_ended = majors[max(majors)]
            self._ended[id] = newest_ended, self._deprecations[newest_ended.key]


def offered_names(
    contracts: Iterable[ToolContract],
    deprecations: Mapping[str, MajorDeprecation] = NO_DEPRECATIONS,
    now: float = 0.0,
) -> dict[str, ToolContract]:
    """What is offered, by name: see Versions."""
    return ContractVersions(contracts, deprecations, now).names


def versioned_name(id: str, major: int) -> str:
    """The name of one major."""
    return f"v{major}.{id}"


def deprecated(name: str, contract: ToolContract, end: MajorDeprecation) -> InterlockError:
    """What a call of a major is told that has ended."""
    onwards = f": see {end.migration_uri}" if end.migration_uri else ": call a newer version"
    return InterlockError(
        DEPRECATED_VERSION,
        f"{name} (version {contract.version}) is no longer served{onwards}.",
        {
            "contract": contract.id,
            "version": contract.version,
            **end.notice(),
            "migration_uri": end.migration_uri,
        },
    )


def _majors(contracts: Iterable[ToolContract]) -> dict[str, dict[int, ToolContract]]:
    """By id and major. Of several versions of one major the newest counts."""
    found: dict[str, dict[int, ToolContract]] = {}
    for contract in contracts:
        known = found.setdefault(contract.id, {})
        other = known.get(contract.major)
        if other is None or (
            contract.version != other.version
            and newest([contract.version, other.version]) == contract.version
        ):
            known[contract.major] = contract
    return found
