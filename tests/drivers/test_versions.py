"""Several majors of one contract: their names, and their end."""

from __future__ import annotations

import pytest

from interlock import errors
from interlock.drivers.contract_versions import (
    DEFAULT_SUNSET_SECONDS,
    ContractVersions,
    MajorDeprecation,
    offered_names,
)
from interlock.errors import InterlockError
from tests.drivers.driver_decisions import contract

ONE, TWO, THREE = (contract(version=version) for version in ("1.4.2", "2.0.0", "3.1.0"))
END = MajorDeprecation(deprecated_at=100.0, sunset_at=200.0, migration_uri="https://example.com/v2")


def test_single_major_has_own_name() -> None:
    assert offered_names([ONE]) == {"image.create": ONE}
    assert offered_names([]) == {}
    only_two = ContractVersions([TWO])
    assert only_two.names == {"image.create": TWO}
    # It answers to its full name, and not to another's.
    assert only_two.find("v2.image.create") is TWO
    assert only_two.find("v1.image.create") is None
    assert only_two.find("image.delete") is None


@pytest.mark.spec("DR-14.fields-8")
def test_oldest_major_has_bare_name() -> None:
    for given in ([ONE, TWO], [TWO, ONE]):
        assert offered_names(given) == {
            "image.create": ONE,
            "v1.image.create": ONE,
            "v2.image.create": TWO,
        }
    newer = contract(version="1.10.0")
    assert offered_names([newer, ONE])["image.create"] is newer
    assert offered_names([ONE, newer])["image.create"] is newer


def test_deprecated_major_is_served_until_sunset() -> None:
    versions = ContractVersions([ONE, TWO], {"image.create@1": END}, now=199.0)
    assert versions.find("image.create") is ONE
    assert versions.find("v1.image.create") is ONE
    assert versions.deprecation_of(ONE) is END
    assert versions.deprecation_of(TWO) is None
    assert END.notice() == {
        "deprecated_at": "1970-01-01T00:01:40.000Z",
        "sunset_at": "1970-01-01T00:03:20.000Z",
        "migration_uri": "https://example.com/v2",
    }
    assert "migration_uri" not in MajorDeprecation(1.0).notice()


def test_ended_major_is_removed_with_migration_hint() -> None:
    versions = ContractVersions([ONE, TWO, THREE], {"image.create@1": END}, now=200.0)
    assert versions.names == {
        "image.create": TWO,
        "v2.image.create": TWO,
        "v3.image.create": THREE,
    }
    with pytest.raises(InterlockError) as error:
        versions.find("v1.image.create")
    assert error.value.failure is errors.DEPRECATED_VERSION
    assert error.value.data is not None
    assert error.value.data["migration_uri"] == "https://example.com/v2"
    assert error.value.data["version"] == "1.4.2"
    assert "https://example.com/v2" in error.value.message


def test_last_major_keeps_its_name() -> None:
    versions = ContractVersions([ONE, TWO], {"image.create@1": END}, now=200.0)
    assert versions.names == {"image.create": TWO, "v2.image.create": TWO}


def test_fully_ended_contract_is_rejected() -> None:
    versions = ContractVersions([ONE], {"image.create@1": MajorDeprecation(0.0, 10.0)}, now=10.0)
    assert versions.names == {}
    for name in ("image.create", "v1.image.create"):
        with pytest.raises(InterlockError) as error:
            versions.find(name)
        assert error.value.failure is errors.DEPRECATED_VERSION
        assert error.value.data is not None
        assert error.value.data["migration_uri"] == ""
    assert versions.find("v2.image.create") is None


def test_default_sunset_is_half_a_year() -> None:
    ends = {"image.create@1": MajorDeprecation(1000.0)}
    assert "image.create" in offered_names([ONE], ends, now=1000.0 + DEFAULT_SUNSET_SECONDS - 1)
    assert offered_names([ONE], ends, now=1000.0 + DEFAULT_SUNSET_SECONDS) == {}
    assert DEFAULT_SUNSET_SECONDS == 180 * 24 * 3600


def test_conflicting_id_keeps_its_name() -> None:
    own = contract("v2.image.create")
    for given in ([ONE, TWO, own], [own, TWO, ONE]):
        versions = ContractVersions(given)
        assert versions.names["v2.image.create"] is own
        assert versions.names["v1.image.create"] is ONE
        assert len(versions.clashes) == 1
    assert ContractVersions([ONE, TWO]).clashes == []
