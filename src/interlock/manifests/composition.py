"""A driver that another manifest refers to: written out there (`inline`), by its id (`ref`), or by
the path of its DRIVER.md (`file`). A text alone is a path or an id."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from interlock.core.config.problems import BadValue, quoted
from interlock.manifests.document import Document
from interlock.manifests.driver import DriverManifest
from interlock.manifests.driver_reader import load_driver, read_fields
from interlock.manifests.findings import ManifestError
from interlock.manifests.paths import find_inside, is_path
from interlock.manifests.ranges import newest
from interlock.manifests.schema_errors import nearest

_FORMS: Final = ("inline", "ref", "file")


def resolve_driver(
    reference: Any, drivers: Mapping[str, DriverManifest], *, folder: Path, root: Path
) -> DriverManifest:
    """The driver that is referred to from a manifest in `folder`. Raises BadValue or ManifestError.

    `drivers` are those of the workspace, by `id@major`.
    """
    if isinstance(reference, str):
        form = "file" if is_path(reference) else "ref"
        value: Any = reference
    elif isinstance(reference, dict) and len(reference) == 1 and next(iter(reference)) in _FORMS:
        ((form, value),) = reference.items()
    else:
        raise BadValue(
            "this does not refer to a driver", "write exactly one of inline, ref and file"
        )
    if form == "inline":
        if not isinstance(value, dict):
            raise BadValue("inline has the fields of a driver", "write them below it")
        file = folder / "DRIVER.md"
        return read_fields(Document(str(file), value), file, root=root).unwrap()
    if not isinstance(value, str) or not value:
        raise BadValue(f"{form} is text", "write an id or a path")
    if form == "file":
        reading = load_driver(find_inside(value, folder, root), root=root)
        if reading.value is None:
            raise ManifestError(reading.problems)
        return reading.value
    return _by_id(value, drivers)


def _by_id(text: str, drivers: Mapping[str, DriverManifest]) -> DriverManifest:
    """`id@major`, or an id alone for its newest version."""
    if text in drivers:
        return drivers[text]
    versions = {one.version: one for one in drivers.values() if one.id == text}
    if versions:
        return versions[newest(list(versions))]
    meant = nearest(text, [*drivers, *(one.id for one in drivers.values())])
    raise BadValue(
        f"there is no driver {quoted(text)}",
        f'did you mean "{meant}"?' if meant else "check the id, or add its DRIVER.md",
    )
