"""References in AIP-27 syntax, `<kind>:<body>`. Parsing accesses nothing outside the text.

Some kinds are built in (`local`, `url`, …), others are registered: each driver resource with
`integrate_as: ref_kind` registers a kind, whose bodies are URIs of the server's template.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from interlock.core.config.problems import InvalidValueError, quote
from interlock.manifests.document import ManifestDocument, ManifestError
from interlock.manifests.driver_reader import load_driver, read_driver_fields
from interlock.manifests.model import DriverManifest
from interlock.manifests.paths import find_inside, is_path
from interlock.manifests.ranges import newest
from interlock.manifests.schemas import nearest
from interlock.protocol.uri_templates import normalize_uri, read_template

_KIND: Final = re.compile(r"[a-z][a-z0-9_]*")
_MAX_LENGTH: Final = 4096
_SIMPLE: Final = re.compile(r"\{(?=[\w%])")

BodyCheck = Callable[[str], bool]


class Reference(Struct, frozen=True):
    """A parsed reference. `known` is False for an unknown kind that was accepted."""

    kind: str
    body: str
    known: bool = True

    def __str__(self) -> str:
        return f"{self.kind}:{self.body}"


def _is_local(body: str) -> bool:
    if body.startswith("/") or "\\" in body:
        return False
    return bool(body) and posixpath.normpath(body).split("/")[0] != ".."


def _is_url(body: str) -> bool:
    return body.startswith(("http://", "https://"))


def _is_anything(body: str) -> bool:
    return bool(body)


_BASE_KINDS: Final[dict[str, BodyCheck]] = {
    "local": _is_local,
    "url": _is_url,
    **dict.fromkeys(
        ("git", "github", "ipfs", "email", "operator", "user", "persona", "eth_tx", "ots"),
        _is_anything,
    ),
}


class ReferenceKinds:
    """The known kinds: those of AIP-27, and registered ones."""

    def __init__(self) -> None:
        self._checks: dict[str, BodyCheck] = dict(_BASE_KINDS)
        self._owners: dict[str, str] = dict.fromkeys(_BASE_KINDS, "AIP-27")

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._checks)

    def register(self, kind: str, check: BodyCheck = _is_anything, *, owner: str = "") -> None:
        """Register a kind. Raises InvalidValueError for an invalid name, or one of another
        owner."""
        if not _KIND.fullmatch(kind):
            raise InvalidValueError(
                f"{quote(kind)} is not a valid kind of reference",
                "write small letters, digits and _, a letter first",
            )
        if kind in self._checks and self._owners[kind] != owner:
            raise InvalidValueError(
                f"the kind {kind} is registered already by {self._owners[kind] or 'another owner'}",
                "use another name",
            )
        self._checks[kind] = check
        self._owners[kind] = owner

    def register_driver(self, driver: DriverManifest) -> None:
        """Register the kinds of a driver's resources. Raises InvalidValueError."""
        for resource in driver.resources:
            if resource.integrate_as == "ref_kind":
                check = _template_check(resource.uri_template)
                self.register(resource.ref_kind_id, check, owner=driver.key)

    def parse(self, text: str, *, strict: bool = True) -> Reference:
        """Parse a reference. Raises InvalidValueError.

        Args:
            strict: whether an unknown kind is an error.
        """
        kind, colon, body = text.partition(":")
        if not colon or not _KIND.fullmatch(kind) or len(text) > _MAX_LENGTH:
            raise InvalidValueError(f"{quote(text)} is not a reference", "write <kind>:<body>")
        check = self._checks.get(kind)
        if check is None:
            if not strict:
                return Reference(kind, body, known=False)
            suggestion = nearest(kind, self._checks)
            raise InvalidValueError(
                f"there is no kind of reference {quote(kind)}",
                f'did you mean "{suggestion}"?' if suggestion else "register it first",
            )
        if not check(body):
            raise InvalidValueError(
                f"{quote(body)} is not a valid body of {kind}", "check the text after the :"
            )
        return Reference(kind, body)


def allow_slashes(template: str) -> str:
    """Return a template whose simple variables match slashes as well: published drivers use
    `file:///{path}` for whole paths."""
    return _SIMPLE.sub("{+", template)


def _template_check(text: str) -> BodyCheck:
    template = read_template(allow_slashes(text))
    if template is None:
        return _is_anything
    return lambda body: bool(body) and template.matches(normalize_uri(body))


# -- Drivers in other manifests: inline (`inline`), by id (`ref`), or by the path of a DRIVER.md
# (`file`). A plain text is a path or an id.

_FORMS: Final = ("inline", "ref", "file")


def resolve_driver(
    reference: Any, drivers: Mapping[str, DriverManifest], *, folder: Path, root: Path
) -> DriverManifest:
    """Return the driver that a manifest in `folder` refers to. Raises InvalidValueError or
    ManifestError.

    Args:
        drivers: the drivers of the workspace, by `id@major`.
    """
    if isinstance(reference, str):
        form = "file" if is_path(reference) else "ref"
        value: Any = reference
    elif isinstance(reference, dict) and len(reference) == 1 and next(iter(reference)) in _FORMS:
        ((form, value),) = reference.items()
    else:
        raise InvalidValueError(
            "this is not a reference to a driver", "write exactly one of inline, ref and file"
        )
    if form == "inline":
        if not isinstance(value, dict):
            raise InvalidValueError("inline takes the fields of a driver", "write them below it")
        file = folder / "DRIVER.md"
        return read_driver_fields(ManifestDocument(str(file), value), file, root=root).unwrap()
    if not isinstance(value, str) or not value:
        raise InvalidValueError(f"{form} must be text", "write an id or a path")
    if form == "file":
        reading = load_driver(find_inside(value, folder, root), root=root)
        if reading.value is None:
            raise ManifestError(reading.problems)
        return reading.value
    return _find_by_id(value, drivers)


def _find_by_id(text: str, drivers: Mapping[str, DriverManifest]) -> DriverManifest:
    """Find a driver by `id@major`, or by an id alone, which means its newest version."""
    if text in drivers:
        return drivers[text]
    versions = {driver.version: driver for driver in drivers.values() if driver.id == text}
    if versions:
        return versions[newest(list(versions))]
    suggestion = nearest(text, [*drivers, *(driver.id for driver in drivers.values())])
    raise InvalidValueError(
        f"there is no driver {quote(text)}",
        f'did you mean "{suggestion}"?' if suggestion else "check the id, or add its DRIVER.md",
    )
