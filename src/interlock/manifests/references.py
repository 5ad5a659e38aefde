"""References as AIP-27 writes them, `<kind>:<body>`. Parsing touches nothing outside the text.

A kind is known from the start (`local`, `url`, …) or registered: every driver resource that is
integrated as `ref_kind` registers one, whose bodies are the URIs of the server's template.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from interlock.core.config.problems import BadValue, quoted
from interlock.manifests.document import ManifestDocument, ManifestError
from interlock.manifests.driver_reader import load_driver, read_driver_fields
from interlock.manifests.model import DriverManifest
from interlock.manifests.paths import find_inside, is_path
from interlock.manifests.ranges import newest
from interlock.manifests.schemas import nearest
from interlock.protocol.uri_templates import normalize_uri, read_template

_KIND: Final = re.compile(r"[a-z][a-z0-9_]*")
_MOST_CHARACTERS: Final = 4096
_SIMPLE: Final = re.compile(r"\{(?=[\w%])")

BodyCheck = Callable[[str], bool]


class Reference(Struct, frozen=True):
    """Something that is referred to. `known` is False for a kind that was let through."""

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
    """The kinds that are known: those of AIP-27, and those that were registered."""

    def __init__(self) -> None:
        self._checks: dict[str, BodyCheck] = dict(_BASE_KINDS)
        self._owners: dict[str, str] = dict.fromkeys(_BASE_KINDS, "AIP-27")

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._checks)

    def register(self, kind: str, check: BodyCheck = _is_anything, *, owner: str = "") -> None:
        """Make a kind known. Raises BadValue for a name that is none, or that another has."""
        if not _KIND.fullmatch(kind):
            raise BadValue(
                f"{quoted(kind)} cannot be a kind of reference",
                "write small letters, digits and _, a letter first",
            )
        if kind in self._checks and self._owners[kind] != owner:
            raise BadValue(
                f"the kind {kind} is {self._owners[kind] or 'somebody'}'s already",
                "use another name",
            )
        self._checks[kind] = check
        self._owners[kind] = owner

    def register_driver(self, driver: DriverManifest) -> None:
        """Make the kinds of a driver's resources known. Raises BadValue."""
        for resource in driver.resources:
            if resource.integrate_as == "ref_kind":
                check = _template_check(resource.uri_template)
                self.register(resource.ref_kind_id, check, owner=driver.key)

    def parse(self, text: str, *, strict: bool = True) -> Reference:
        """What a text refers to. Raises BadValue; not `strict`: an unknown kind is let through."""
        kind, colon, body = text.partition(":")
        if not colon or not _KIND.fullmatch(kind) or len(text) > _MOST_CHARACTERS:
            raise BadValue(f"{quoted(text)} is not a reference", "write <kind>:<body>")
        check = self._checks.get(kind)
        if check is None:
            if not strict:
                return Reference(kind, body, known=False)
            meant = nearest(kind, self._checks)
            raise BadValue(
                f"there is no kind of reference {quoted(kind)}",
                f'did you mean "{meant}"?' if meant else "register it first",
            )
        if not check(body):
            raise BadValue(
                f"{quoted(body)} is not what {kind} refers to", "check what follows the :"
            )
        return Reference(kind, body)


def with_slashes(template: str) -> str:
    """A template whose simple variables may hold slashes, too: published drivers mean whole paths
    by `file:///{path}`."""
    return _SIMPLE.sub("{+", template)


def _template_check(text: str) -> BodyCheck:
    template = read_template(with_slashes(text))
    if template is None:
        return _is_anything
    return lambda body: bool(body) and template.matches(normalize_uri(body))


# -- A driver that another manifest refers to: written out there (`inline`), by its id (`ref`), or
# by the path of its DRIVER.md (`file`). A text alone is a path or an id.

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
        return read_driver_fields(ManifestDocument(str(file), value), file, root=root).unwrap()
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
