"""Queries of the contract registry: select exactly one contract by name and version range, or
explain which contracts and versions exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from interlock.contracts.diff.compatibility import read_version
from interlock.contracts.registry.index import ContractIndex
from interlock.contracts.registry.records import (
    ContractProtocol,
    Deprecation,
    StoredContract,
    invalid_request,
    parse_timestamp,
)
from interlock.core.config.problems import InvalidValueError
from interlock.errors import DEPRECATED_VERSION, UNKNOWN_CONTRACT, InterlockError
from interlock.manifests.ranges import in_range

_MAX_LISTED: Final = 20
_PREFERRED_PROTOCOLS: Final[tuple[ContractProtocol, ...]] = ("json-schema", "mcp-tool")
"""The protocols to choose, in this order, where a request names none and a contract has several."""


def find(
    index: ContractIndex,
    name: str,
    range: str,
    *,
    domain: str | None,
    protocol: ContractProtocol | None,
    now: float,
    include_sunset: bool,
) -> StoredContract:
    """Return the newest version in a range, with its document.

    Args:
        include_sunset: also return a major whose support has ended.

    Raises:
        InterlockError: No contract matches, several match, or the major has ended.
    """
    matches = [
        contract
        for contract in index.search(name=name, domain=domain, protocol=protocol)
        if is_in_range(contract.version, range)
    ]
    if not matches:
        raise unknown_contract_error(index, name, range, domain, protocol)
    matched_domain = single_domain(name, matches)
    protocols = {contract.protocol for contract in matches}
    if len(protocols) > 1:
        preferred = next((name for name in _PREFERRED_PROTOCOLS if name in protocols), None)
        if preferred is None:
            raise invalid_request(
                f"{name} exists in several protocols: {', '.join(sorted(protocols))}. Name the "
                "protocol.",
                protocols=sorted(protocols),
            )
        matches = [contract for contract in matches if contract.protocol == preferred]
    newest = max(matches, key=lambda contract: read_version(contract.version))
    end = deprecation(index, name, newest.major, matched_domain)
    if end is not None and end.is_over(now) and not include_sunset:
        raise InterlockError(
            DEPRECATED_VERSION,
            f"Support for {name} {newest.major}.x ended at {end.sunset_at}. Use a newer major. See "
            f"{end.migration_uri}",
            {
                "name": name,
                "version": newest.version,
                "deprecated_at": end.deprecated_at,
                "sunset_at": end.sunset_at,
                "migration_uri": end.migration_uri,
            },
        )
    return msgspec.structs.replace(newest, document=index.document(newest.path), deprecation=end)


def deprecation(
    index: ContractIndex, name: str, major: int, domain: str | None
) -> Deprecation | None:
    """Return the end of support for a major. None: the major is not deprecated."""
    for deprecated in index.deprecations(name):
        if deprecated.major == major and domain in (None, deprecated.domain):
            return deprecated
    return None


def single_domain(name: str, contracts: Sequence[StoredContract]) -> str:
    """Return the domain that all contracts share. Raises InterlockError when there are several."""
    domains = sorted({contract.domain for contract in contracts})
    if len(domains) > 1:
        raise invalid_request(
            f"{name} exists in several domains: {', '.join(domains)}. Name the domain.",
            domains=domains,
        )
    return domains[0]


def unknown_contract_error(
    index: ContractIndex,
    name: str,
    range: str,
    domain: str | None = None,
    protocol: ContractProtocol | None = None,
) -> InterlockError:
    """Return the error for a name or range without a match. Its message lists what exists."""
    candidates = index.search(name=name, domain=domain, protocol=protocol)
    versions = sorted({contract.version for contract in candidates}, key=read_version)
    if versions:
        listed = ", ".join(versions[-_MAX_LISTED:])
        message = f"{name} has no version in {range}. Available: {listed}."
    elif others := index.search(name=name):
        locations = sorted({f"{contract.domain} ({contract.protocol})" for contract in others})
        message = (
            f"{name} does not exist in this domain or protocol. Found: {', '.join(locations)}."
        )
    elif similar_names := index.find_similar_names(name, 3):
        message = f"There is no contract {name}. Did you mean {' or '.join(similar_names)}?"
    else:
        message = f"There is no contract {name} in the registry."
    return InterlockError(
        UNKNOWN_CONTRACT, message, {"name": name, "range": range, "versions": versions}
    )


def is_in_range(version: str, range: str) -> bool:
    """Return whether a version is in an npm range. Raises InterlockError for an invalid range."""
    try:
        return in_range(version, range)
    except InvalidValueError as error:
        raise invalid_request(f"{error.message}: {error.hint}.", range=range) from None


def parse_request_time(text: str) -> float:
    """Parse an ISO 8601 time of a request. Raises InterlockError."""
    try:
        return parse_timestamp(text)
    except ValueError as error:
        raise invalid_request(f"Invalid time: {error}. Use ISO 8601, such as 2027-01-31.") from None
