"""Protobuf files as data: what the generators read, without Protobuf itself."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

import msgspec

REQUIRED: Final = "REQUIRED"
OPTIONAL: Final = "OPTIONAL"


class FieldDeclaration(msgspec.Struct, frozen=True):
    """One field of a message."""

    name: str
    json_name: str
    number: int
    kind: str
    """`string`, `int64`, `message`, `enum`, … as Protobuf calls it."""
    type: str = ""
    """The full name of its message or enum."""
    repeated: bool = False
    optional: bool = False
    """Whether it says `optional`."""
    behaviors: tuple[str, ...] = ()
    oneof: str = ""
    about: str = ""
    deprecated: bool = False
    secret: bool = False
    """Whether it says `debug_redact`: nobody shows it."""
    key: str = ""
    """Of a map: the kind of its keys; the rest is about its values."""


class MessageDeclaration(msgspec.Struct, frozen=True):
    """One message. Messages inside others stand beside them, by their full name."""

    full_name: str
    file: str
    package: str
    fields: tuple[FieldDeclaration, ...] = ()
    about: str = ""
    plain: bool = False
    """Written as the style PLAIN says."""
    closed: bool = False
    inline: bool = False
    deprecated: bool = False

    @property
    def name(self) -> str:
        """Without the package."""
        return local_name(self.full_name, self.package)

    def field(self, name: str) -> FieldDeclaration | None:
        return next((one for one in self.fields if one.name == name), None)


class EnumValue(msgspec.Struct, frozen=True):
    name: str
    number: int
    about: str = ""
    word: str = ""
    """What is written for it, where that is said."""


class EnumType(msgspec.Struct, frozen=True):
    """One enum."""

    full_name: str
    file: str
    package: str
    values: tuple[EnumValue, ...] = ()
    about: str = ""
    plain: bool = False

    @property
    def name(self) -> str:
        return local_name(self.full_name, self.package)


class HttpRule(msgspec.Struct, frozen=True):
    """One way by which a method is reached over HTTP."""

    method: str
    path: str
    body: str = ""
    response_body: str = ""


class MethodDeclaration(msgspec.Struct, frozen=True):
    """One method of a service."""

    name: str
    input: str
    output: str
    http: tuple[HttpRule, ...] = ()
    streams: bool = False
    """Whether the answer comes piece by piece."""
    access: str = ""
    about: str = ""
    deprecated: bool = False


class ServiceDeclaration(msgspec.Struct, frozen=True):
    full_name: str
    file: str
    methods: tuple[MethodDeclaration, ...] = ()
    about: str = ""

    @property
    def name(self) -> str:
        return self.full_name.rpartition(".")[2]


class ApiInfo(msgspec.Struct, frozen=True):
    """What holds for an API as a whole."""

    title: str = ""
    version: str = ""
    error: str = ""
    session_header: str = ""


class ProtoFile(msgspec.Struct, frozen=True):
    """One file."""

    name: str
    """As others import it."""
    package: str
    imports: tuple[str, ...] = ()
    messages: tuple[MessageDeclaration, ...] = ()
    enums: tuple[EnumType, ...] = ()
    services: tuple[ServiceDeclaration, ...] = ()
    api: ApiInfo | None = None
    about: str = ""


class ProtoFiles:
    """Files that belong together, and what is in them by name."""

    def __init__(self, files: Iterable[ProtoFile], imported: Iterable[ProtoFile] = ()) -> None:
        """`imported`: files of others, from which nothing is generated."""
        self.files = {one.name: one for one in files}
        self._imported = list(imported)
        everything = [*self.files.values(), *self._imported]
        self.messages = {one.full_name: one for file in everything for one in file.messages}
        self.enums = {one.full_name: one for file in everything for one in file.enums}

    def only(self, names: Container[str]) -> ProtoFiles:
        """The same, with nothing generated from other files than these."""
        files = [*self.files.values(), *self._imported]
        return ProtoFiles(
            [one for one in files if one.name in names],
            [one for one in files if one.name not in names],
        )

    def packages(self) -> list[str]:
        return sorted({one.package for one in self.files.values()})

    def of_package(self, package: str) -> list[ProtoFile]:
        return [one for one in self.files.values() if one.package == package]

    def api(self, package: str) -> ApiInfo:
        """What is said of the API of a package; its version is that of the package's name, if
        nobody says another."""
        said = (one.api for one in self.of_package(package) if one.api is not None)
        api = next(said, ApiInfo())
        if api.version:
            return api
        last = package.rpartition(".")[2]
        major = last[1:] if last[:1] == "v" and last[1:].isdigit() else "1"
        return msgspec.structs.replace(api, version=f"{major}.0.0")


def local_name(full_name: str, package: str) -> str:
    """A name as it is written inside a package."""
    return full_name.removeprefix(f"{package}.") if package else full_name
