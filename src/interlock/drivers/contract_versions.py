"""Major versions of a contract that are served at the same time: their names and their end
(AIP-14).

Every major has a name such as `v1.image.create` and `v2.image.create`. The bare name belongs to the
oldest major that is served, so that existing callers keep their version. After its sunset a major
is not offered any more, and a call of it fails with a pointer to the replacement.
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

DEFAULT_SUNSET_SECONDS: Final = 180 * 86_400.0
"""Time from the deprecation to the sunset of a major version, unless the registry says
otherwise."""
_PREFIXED: Final = re.compile(r"v(0|[1-9][0-9]{0,8})\.(.+)")


class MajorDeprecation(Struct, frozen=True):
    """The deprecation of a major version. Times are seconds since 1970."""

    deprecated_at: float
    sunset_at: float | None = None
    migration_uri: str = ""

    @property
    def ends_at(self) -> float:
        return (
            self.deprecated_at + DEFAULT_SUNSET_SECONDS
            if self.sunset_at is None
            else self.sunset_at
        )

    def notice(self) -> dict[str, Any]:
        """Return the deprecation notice for callers."""
        notice = {
            "deprecated_at": format_utc_ms(self.deprecated_at),
            "sunset_at": format_utc_ms(self.ends_at),
        }
        return {**notice, "migration_uri": self.migration_uri} if self.migration_uri else notice


NO_DEPRECATIONS: Final[Mapping[str, MajorDeprecation]] = {}


def registered_deprecations(
    contracts: Iterable[ToolContract], registered: Mapping[str, records.Deprecation]
) -> dict[str, MajorDeprecation]:
    """Return the deprecations of contracts in the registry, by `id@major`."""
    return {
        contract.key: MajorDeprecation(
            records.parse_timestamp(end.deprecated_at),
            records.parse_timestamp(end.sunset_at),
            end.migration_uri,
        )
        for contract in contracts
        if (end := registered.get(contract.key)) is not None
    }


class ContractVersions:
    """The major versions of all contracts at one point in time."""

    def __init__(
        self,
        contracts: Iterable[ToolContract],
        deprecations: Mapping[str, MajorDeprecation] = NO_DEPRECATIONS,
        now: float = 0.0,
    ) -> None:
        """Args:
        deprecations: by `id@major`.
        """
        self.names: dict[str, ToolContract] = {}
        """Offered contracts, by name."""
        self.clashes: list[str] = []
        """Messages about names that two contracts claim."""
        self._ended_versions: dict[str, tuple[ToolContract, MajorDeprecation]] = {}
        self._deprecations = deprecations
        majors = _majors(contracts)
        for id in sorted(majors):
            self._assign_names(id, majors[id], now)
        # The id of a contract may look like the versioned name of another. The id takes precedence.
        for id in majors:
            for major, contract in majors[id].items():
                name = versioned_name(id, major)
                if len(majors[id]) > 1 and name in majors:
                    self.clashes.append(
                        f"{name} is a contract's id and the name of {contract.key}: rename one."
                    )

    def find(self, name: str) -> ToolContract | None:
        """Find the contract of a name. None: there is none.

        Raises:
            InterlockError: deprecated_version, for a major version that has ended.
        """
        contract = self.names.get(name)
        if contract is not None:
            return contract
        ended_version = self._ended_versions.get(name)
        if ended_version is None:
            # A contract with one major version is listed under its bare name, but is also found by
            # the versioned name.
            match = _PREFIXED.fullmatch(name)
            if match is not None:
                contract = self.names.get(match[2])
                if (
                    contract is not None
                    and contract.id == match[2]
                    and contract.major == int(match[1])
                ):
                    return contract
                ended_version = self._ended_versions.get(match[2])
                if ended_version is not None and ended_version[0].major != int(match[1]):
                    ended_version = None
        if ended_version is None:
            return None
        raise ended_version_error(name, *ended_version)

    def deprecation_of(self, contract: ToolContract) -> MajorDeprecation | None:
        """Return the deprecation of a contract's major version, if there is one."""
        return self._deprecations.get(contract.key)

    def _assign_names(self, id: str, majors: dict[int, ToolContract], now: float) -> None:
        served_contracts: list[ToolContract] = []
        for major in sorted(majors):
            contract = majors[major]
            deprecation = self._deprecations.get(contract.key)
            name = versioned_name(id, major)
            if deprecation is not None and deprecation.ends_at <= now:
                self._ended_versions[name] = contract, deprecation
            else:
                served_contracts.append(contract)
                if len(majors) > 1:
                    self.names.setdefault(name, contract)
        if served_contracts:
            self.names[id] = served_contracts[0]
        else:
            newest_ended = majors[max(majors)]
            self._ended_versions[id] = newest_ended, self._deprecations[newest_ended.key]


def offered_names(
    contracts: Iterable[ToolContract],
    deprecations: Mapping[str, MajorDeprecation] = NO_DEPRECATIONS,
    now: float = 0.0,
) -> dict[str, ToolContract]:
    """Return the offered contracts by name: see `ContractVersions`."""
    return ContractVersions(contracts, deprecations, now).names


def versioned_name(id: str, major: int) -> str:
    """Return the name of a major version."""
    return f"v{major}.{id}"


def ended_version_error(
    name: str, contract: ToolContract, deprecation: MajorDeprecation
) -> InterlockError:
    """Return the error for a call of a major version that has ended."""
    advice = (
        f": see {deprecation.migration_uri}"
        if deprecation.migration_uri
        else ": call a newer version"
    )
    return InterlockError(
        DEPRECATED_VERSION,
        f"{name} (version {contract.version}) is no longer served{advice}.",
        {
            "contract": contract.id,
            "version": contract.version,
            **deprecation.notice(),
            "migration_uri": deprecation.migration_uri,
        },
    )


def _majors(contracts: Iterable[ToolContract]) -> dict[str, dict[int, ToolContract]]:
    """Group contracts by id and major version. Of several versions of a major the newest counts."""
    majors: dict[str, dict[int, ToolContract]] = {}
    for contract in contracts:
        versions = majors.setdefault(contract.id, {})
        previous = versions.get(contract.major)
        if previous is None or (
            contract.version != previous.version
            and newest([contract.version, previous.version]) == contract.version
        ):
            versions[contract.major] = contract
    return majors
