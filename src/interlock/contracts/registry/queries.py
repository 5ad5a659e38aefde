"""Which contract is meant by a name and a range of versions: exactly one, or a reason why not that
says what there is."""

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
    moment_of,
    refused,
)
from interlock.core.config.problems import BadValue
from interlock.errors import DEPRECATED_VERSION, UNKNOWN_CONTRACT, InterlockError
from interlock.manifests.ranges import in_range

_MOST_NAMED: Final = 20
_PREFERRED: Final[tuple[ContractProtocol, ...]] = ("json-schema", "mcp-tool")
"""What is meant where nobody says which protocol, and there are several."""


def find(
    index: ContractIndex,
    name: str,
    range: str,
    *,
    domain: str | None,
    protocol: ContractProtocol | None,
    now: float,
    sunset: bool,
) -> StoredContract:
    """The newest version in a range, with its document. Raises InterlockError."""
    found = [
        one
        for one in index.search(name=name, domain=domain, protocol=protocol)
        if is_in_range(one.version, range)
    ]
    if not found:
        raise unknown(index, name, range, domain, protocol)
    where = one_domain(name, found)
    protocols = {one.protocol for one in found}
    if len(protocols) > 1:
        meant = next((one for one in _PREFERRED if one in protocols), None)
        if meant is None:
            raise refused(
                f"{name} is there as {' and as '.join(sorted(protocols))}: say which protocol.",
                protocols=sorted(protocols),
            )
        found = [one for one in found if one.protocol == meant]
    newest = max(found, key=lambda one: read_version(one.version))
    ends = deprecation(index, name, newest.major, where)
    if ends is not None and ends.is_over(now) and not sunset:
        raise InterlockError(
            DEPRECATED_VERSION,
            f"{name} {newest.major}.x is not supported since {ends.sunset_at}: see "
            f"{ends.migration_uri}",
            {
                "name": name,
                "version": newest.version,
                "deprecated_at": ends.deprecated_at,
                "sunset_at": ends.sunset_at,
                "migration_uri": ends.migration_uri,
            },
        )
    return msgspec.structs.replace(newest, document=index.document(newest.path), deprecation=ends)


def deprecation(
    index: ContractIndex, name: str, major: int, domain: str | None
) -> Deprecation | None:
    """Until when a major is supported. None: nobody has deprecated it."""
    for one in index.deprecations(name):
        if one.major == major and domain in (None, one.domain):
            return one
    return None


def one_domain(name: str, found: Sequence[StoredContract]) -> str:
    """The domain that all of them are of. Raises InterlockError when there are several."""
    domains = sorted({one.domain for one in found})
    if len(domains) > 1:
        raise refused(
            f"There is a {name} in {' and in '.join(domains)}: say which domain.", domains=domains
        )
    return domains[0]


def unknown(
    index: ContractIndex,
    name: str,
    range: str,
    domain: str | None = None,
    protocol: ContractProtocol | None = None,
) -> InterlockError:
    """Why there is nothing, and what there is instead."""
    there = index.search(name=name, domain=domain, protocol=protocol)
    versions = sorted({one.version for one in there}, key=read_version)
    if versions:
        shown = ", ".join(versions[-_MOST_NAMED:])
        sentence = f"{name} has no version in {range}: there is {shown}."
    elif others := index.search(name=name):
        where = sorted({f"{one.domain} ({one.protocol})" for one in others})
        sentence = f"There is no {name} like that, but one in {', '.join(where)}."
    elif meant := index.names_like(name, 3):
        sentence = f"There is no contract {name}. Did you mean {' or '.join(meant)}?"
    else:
        sentence = f"There is no contract {name} in the registry."
    return InterlockError(
        UNKNOWN_CONTRACT, sentence, {"name": name, "range": range, "versions": versions}
    )


def is_in_range(version: str, range: str) -> bool:
    """Whether a version is in an npm range. Raises InterlockError for what is no range."""
    try:
        return in_range(version, range)
    except BadValue as bad:
        raise refused(f"{bad.message}: {bad.hint}.", range=range) from None


def moment(text: str) -> float:
    """A moment that somebody wrote. Raises InterlockError."""
    try:
        return moment_of(text)
    except ValueError as error:
        raise refused(f"Write a moment as ISO 8601, such as 2027-01-31: {error}.") from None
