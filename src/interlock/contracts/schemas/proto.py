"""Protobuf files as plain data: the input of the generators, without the Protobuf library."""

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
    """The type by its Protobuf name: `string`, `int64`, `message`, `enum`, …"""
    type: str = ""
    """The full name of the message or enum."""
    repeated: bool = False
    optional: bool = False
    """True if the field is declared `optional`."""
    behaviors: tuple[str, ...] = ()
    oneof: str = ""
    description: str = ""
    deprecated: bool = False
    secret: bool = False
    """True if the field is declared `debug_redact`: its value must not be displayed."""
    key: str = ""
    """For a map: the kind of its keys; the other attributes describe its values."""


class MessageDeclaration(msgspec.Struct, frozen=True):
    """One message. Nested messages are separate entries, by their full name."""

    full_name: str
    file: str
    package: str
    fields: tuple[FieldDeclaration, ...] = ()
    description: str = ""
    plain: bool = False
    """True if the file declares the style PLAIN."""
    closed: bool = False
    inline: bool = False
    deprecated: bool = False

    @property
    def name(self) -> str:
        """The name without the package."""
        return local_name(self.full_name, self.package)

    def field(self, name: str) -> FieldDeclaration | None:
        return next((field for field in self.fields if field.name == name), None)


class EnumValue(msgspec.Struct, frozen=True):
    name: str
    number: int
    description: str = ""
    json_value: str = ""
    """The JSON value, if one is declared."""


class EnumType(msgspec.Struct, frozen=True):
    """One enum."""

    full_name: str
    file: str
    package: str
    values: tuple[EnumValue, ...] = ()
    description: str = ""
    plain: bool = False

    @property
    def name(self) -> str:
        return local_name(self.full_name, self.package)


class HttpRule(msgspec.Struct, frozen=True):
    """A route of a method over HTTP."""

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
    """True if the method streams its response."""
    access: str = ""
    description: str = ""
    deprecated: bool = False


class ServiceDeclaration(msgspec.Struct, frozen=True):
    full_name: str
    file: str
    methods: tuple[MethodDeclaration, ...] = ()
    description: str = ""

    @property
    def name(self) -> str:
        return self.full_name.rpartition(".")[2]


class ApiInfo(msgspec.Struct, frozen=True):
    """The metadata of an API."""

    title: str = ""
    version: str = ""
    error: str = ""
    session_header: str = ""


class ProtoFile(msgspec.Struct, frozen=True):
    """One `.proto` file."""

    name: str
    """The name by which other files import it."""
    package: str
    imports: tuple[str, ...] = ()
    messages: tuple[MessageDeclaration, ...] = ()
    enums: tuple[EnumType, ...] = ()
    services: tuple[ServiceDeclaration, ...] = ()
    api: ApiInfo | None = None
    description: str = ""


class ProtoFiles:
    """A set of files, with their declarations by name."""

    def __init__(self, files: Iterable[ProtoFile], imported: Iterable[ProtoFile] = ()) -> None:
        """Create the set.

        Args:
            imported: files from which nothing is generated.
        """
        self.files = {file.name: file for file in files}
        self._imported = list(imported)
        all_files = [*self.files.values(), *self._imported]
        self.messages = {
            message.full_name: message for file in all_files for message in file.messages
        }
        self.enums = {enum.full_name: enum for file in all_files for enum in file.enums}

    def only(self, names: Container[str]) -> ProtoFiles:
        """Return a set that generates from these files only."""
        files = [*self.files.values(), *self._imported]
        return ProtoFiles(
            [file for file in files if file.name in names],
            [file for file in files if file.name not in names],
        )

    def packages(self) -> list[str]:
        return sorted({file.package for file in self.files.values()})

    def package_files(self, package: str) -> list[ProtoFile]:
        return [file for file in self.files.values() if file.package == package]

    def api(self, package: str) -> ApiInfo:
        """Return the metadata of the API of a package. The default version is from the name of
        the package."""
        declared = (file.api for file in self.package_files(package) if file.api is not None)
        api = next(declared, ApiInfo())
        if api.version:
            return api
        last = package.rpartition(".")[2]
        major = last[1:] if last[:1] == "v" and last[1:].isdigit() else "1"
        return msgspec.structs.replace(api, version=f"{major}.0.0")


def local_name(full_name: str, package: str) -> str:
    """Return the name of a type inside its package."""
    return full_name.removeprefix(f"{package}.") if package else full_name
