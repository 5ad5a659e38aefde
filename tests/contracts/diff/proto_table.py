"""Labelled changes of Protobuf files.

A row is a name, what stood in the file, what stands there now, and every change that has to be
reported: `CLASS full.name`, with `!` in front where it breaks somebody.
"""

from __future__ import annotations

ProtoRow = tuple[str, str, str, tuple[str, ...]]

HEAD = 'syntax = "proto3";\npackage p;\n'
TWO = 'syntax = "proto2";\npackage p;\n'


def message(fields: str, name: str = "M") -> str:
    return f"{HEAD}message {name} {{ {fields}\n}}\n"


def old(fields: str) -> str:
    return f"{TWO}message M {{ {fields} }}\n"


def enum(values: str) -> str:
    return f"{HEAD}enum E {{ {values} }}\n"


def service(methods: str) -> str:
    return f"{HEAD}message M {{}}\nmessage N {{}}\nservice S {{ {methods} }}\n"


ZERO = "E_UNSPECIFIED = 0;"

# The classes of the specification.
CLASSES: list[ProtoRow] = [
    ("field removed", message("string a = 1; string b = 2;"), message("string a = 1;"),
     ("!FIELD_REMOVED p.M.b",)),
    ("field type changed", message("string a = 1;"), message("int32 a = 1;"),
     ("!FIELD_TYPE_CHANGED p.M.a",)),
    ("required field added", old("optional string a = 1;"),
     old("optional string a = 1; required string b = 2;"), ("!REQUIRED_FIELD_ADDED p.M.b",)),
    ("enum value removed", enum(f"{ZERO} A = 1;"), enum(ZERO), ("!ENUM_VALUE_REMOVED p.E.A",)),
    ("field number changed", message("string a = 1;"), message("string a = 2;"),
     ("!FIELD_NUMBER_CHANGED p.M.a",)),
    ("optional field added", message("string a = 1;"), message("string a = 1; string b = 2;"),
     ("FIELD_ADDED_OPTIONAL p.M.b",)),
    ("enum value added", enum(ZERO), enum(f"{ZERO} A = 1;"), ("ENUM_VALUE_ADDED p.E.A",)),
    ("description changed", message("\n// One.\nstring a = 1;"),
     message("\n// Two.\nstring a = 1;"),
     ("DESCRIPTION_CHANGED p.M.a",)),
]  # fmt: skip

FIELDS: list[ProtoRow] = [
    ("removed and reserved", message("string a = 1; string b = 2;"),
     message('string a = 1; reserved 2; reserved "b";'),
     ("!FIELD_REMOVED p.M.b", "RESERVED_ADDED p.M")),
    ("renamed", message("string a = 1;"), message("string b = 1;"), ("!FIELD_RENAMED p.M.a",)),
    ("numbers swapped", message("string a = 1; string b = 2;"),
     message("string a = 2; string b = 1;"),
     ("!FIELD_NUMBER_CHANGED p.M.a", "!FIELD_NUMBER_CHANGED p.M.b")),
    ("name in JSON", message("string a = 1;"), message('string a = 1 [json_name = "x"];'),
     ("!JSON_NAME_CHANGED p.M.a",)),
    ("wider integer", message("int32 a = 1;"), message("int64 a = 1;"),
     ("!FIELD_TYPE_CHANGED p.M.a",)),
    ("another message", f"{HEAD}message A {{}} message B {{}} message M {{ A a = 1; }}",
     f"{HEAD}message A {{}} message B {{}} message M {{ B a = 1; }}",
     ("!FIELD_TYPE_CHANGED p.M.a",)),
    ("enum instead of a number", f"{HEAD}enum E {{ {ZERO} }} message M {{ int32 a = 1; }}",
     f"{HEAD}enum E {{ {ZERO} }} message M {{ E a = 1; }}", ("!FIELD_TYPE_CHANGED p.M.a",)),
    ("a list now", message("string a = 1;"), message("repeated string a = 1;"),
     ("!FIELD_LABEL_CHANGED p.M.a",)),
    ("no list any more", message("repeated string a = 1;"), message("string a = 1;"),
     ("!FIELD_LABEL_CHANGED p.M.a",)),
    ("a map of something else", message("map<string, int32> a = 1;"),
     message("map<string, string> a = 1;"), ("!FIELD_TYPE_CHANGED p.M.a",)),
    ("a map by other keys", message("map<string, int32> a = 1;"),
     message("map<int32, int32> a = 1;"), ("!FIELD_TYPE_CHANGED p.M.a",)),
    ("a map added", message("string a = 1;"), message("string a = 1; map<string, int32> b = 2;"),
     ("FIELD_ADDED_OPTIONAL p.M.b",)),
    ("optional in proto3", message("string a = 1;"), message("optional string a = 1;"),
     ("FIELD_PRESENCE_CHANGED p.M.a",)),
    ("no longer optional in proto3", message("optional string a = 1;"), message("string a = 1;"),
     ("!FIELD_PRESENCE_CHANGED p.M.a",)),
    ("made required", old("optional string a = 1;"), old("required string a = 1;"),
     ("!REQUIRED_FIELD_ADDED p.M.a",)),
    ("no longer required", old("required string a = 1;"), old("optional string a = 1;"),
     ("!REQUIRED_FIELD_DROPPED p.M.a",)),
    ("default", old("optional int32 a = 1 [default = 1];"),
     old("optional int32 a = 1 [default = 2];"), ("!DEFAULT_CHANGED p.M.a",)),
    ("comment behind", message("string a = 1; // One."), message("string a = 1; // Two.\n"),
     ("DESCRIPTION_CHANGED p.M.a",)),
    ("deprecated", message("string a = 1;"), message("string a = 1 [deprecated = true];"),
     ("DEPRECATED p.M.a",)),
    ("in another order", message("string a = 1; string b = 2;"),
     message("string b = 2; string a = 1;"), ()),
    ("into a oneof", message("string a = 1; string b = 2;"),
     message("oneof x { string a = 1; string b = 2; }"),
     ("FIELD_PRESENCE_CHANGED p.M.a", "FIELD_PRESENCE_CHANGED p.M.b",
      "!ONEOF_CHANGED p.M.a", "!ONEOF_CHANGED p.M.b")),
    ("out of a oneof", message("oneof x { string a = 1; string b = 2; }"),
     message("oneof x { string a = 1; } optional string b = 2;"),
     ("!ONEOF_CHANGED p.M.b",)),
    ("into another oneof", message("oneof x { string a = 1; string b = 2; }"),
     message("oneof x { string a = 1; } oneof y { string b = 2; }"), ("!ONEOF_CHANGED p.M.b",)),
    ("oneof renamed", message("oneof x { string a = 1; string b = 2; }"),
     message("oneof y { string a = 1; string b = 2; }"), ("ONEOF_CHANGED p.M.x",)),
    ("oneof with one more", message("oneof x { string a = 1; }"),
     message("oneof x { string a = 1; string b = 2; }"), ("FIELD_ADDED_OPTIONAL p.M.b",)),
    ("reserved number used", message("reserved 2; string a = 1;"),
     message("string a = 1; string b = 2;"),
     ("!RESERVED_DROPPED p.M", "!RESERVED_REUSED p.M.b")),
    ("reserved name used", message('reserved "b"; string a = 1;'),
     message("string a = 1; string b = 2;"),
     ("!RESERVED_DROPPED p.M", "!RESERVED_REUSED p.M.b")),
    ("reserved range split", message("reserved 2 to 9; string a = 1;"),
     message("reserved 2 to 4, 5 to 9; string a = 1;"), ()),
    ("reserved range shorter", message("reserved 2 to 9; string a = 1;"),
     message("reserved 2 to 8; string a = 1;"), ("!RESERVED_DROPPED p.M",)),
    ("nested field removed", message("message N { string x = 1; } N n = 1;"),
     message("message N {} N n = 1;"), ("!FIELD_REMOVED p.M.N.x",)),
]  # fmt: skip

REST: list[ProtoRow] = [
    ("message removed", message("") + "message N {}", message(""), ("!MESSAGE_REMOVED p.N",)),
    ("message added", message(""), message("") + "message N {}", ("MESSAGE_ADDED p.N",)),
    ("message moved inside", f"{HEAD}message M {{}} message N {{}}", message("message N {}"),
     ("!MESSAGE_REMOVED p.N", "MESSAGE_ADDED p.M.N")),
    ("enum removed", enum(ZERO) + "message M {}", message(""), ("!ENUM_REMOVED p.E",)),
    ("enum added", message(""), enum(ZERO) + "message M {}", ("ENUM_ADDED p.E",)),
    ("enum value without UNSPECIFIED", enum("NONE = 0;"), enum("NONE = 0; A = 1;"),
     ("!ENUM_VALUE_ADDED p.E.A",)),
    ("enum value renamed", enum(f"{ZERO} A = 1;"), enum(f"{ZERO} B = 1;"),
     ("!ENUM_VALUE_RENAMED p.E.A",)),
    ("enum value renumbered", enum(f"{ZERO} A = 1;"), enum(f"{ZERO} A = 2;"),
     ("!ENUM_VALUE_NUMBER_CHANGED p.E.A",)),
    ("another name for a value", enum(f"option allow_alias = true; {ZERO} Z = 0; A = 1;"),
     enum(f"option allow_alias = true; {ZERO} Z = 0; A = 1; B = 1;"),
     ("ENUM_VALUE_ADDED p.E.B",)),
    ("reserved value used", enum(f"{ZERO} reserved 5;"), enum(f"{ZERO} A = 5;"),
     ("!RESERVED_DROPPED p.E", "!RESERVED_REUSED p.E.A")),
    ("service removed", service("") + "service T {}", service(""), ("!SERVICE_REMOVED p.T",)),
    ("service added", service(""), service("") + "service T {}", ("SERVICE_ADDED p.T",)),
    ("method removed", service("rpc A(M) returns (N);"), service(""), ("!METHOD_REMOVED p.S.A",)),
    ("method added", service(""), service("rpc A(M) returns (N);"), ("METHOD_ADDED p.S.A",)),
    ("method takes another", service("rpc A(M) returns (N);"), service("rpc A(N) returns (N);"),
     ("!METHOD_SIGNATURE_CHANGED p.S.A",)),
    ("method returns another", service("rpc A(M) returns (N);"), service("rpc A(M) returns (M);"),
     ("!METHOD_SIGNATURE_CHANGED p.S.A",)),
    ("method streams", service("rpc A(M) returns (N);"), service("rpc A(M) returns (stream N);"),
     ("!METHOD_STREAMING_CHANGED p.S.A",)),
    ("method has side effects", service(
        "rpc A(M) returns (N) { option idempotency_level = NO_SIDE_EFFECTS; }"),
     service("rpc A(M) returns (N);"), ("!EFFECT_RAISED p.S.A",)),
    ("package renamed", message("string a = 1;").replace("package p", "package p.v1"),
     message("string a = 1; string b = 2;").replace("package p", "package p.v2"),
     ("!PACKAGE_CHANGED p.v1", "FIELD_ADDED_OPTIONAL p.v2.M.b")),
    ("package renamed, types follow",
     f"{HEAD}message A {{}} message M {{ A a = 1; }}".replace("package p", "package p.v1"),
     f"{HEAD}message A {{}} message M {{ A a = 1; }}".replace("package p", "package p.v2"),
     ("!PACKAGE_CHANGED p.v1",)),
    ("proto2 to proto3", old("optional string a = 1;"), message("optional string a = 1;"),
     ("!SYNTAX_CHANGED x.proto",)),
    ("proto3 to editions", message("string a = 1;"),
     'edition = "2023";\npackage p;\noption features.field_presence = IMPLICIT;\n'
     "message M { string a = 1; }", ("SYNTAX_CHANGED x.proto",)),
    ("an enum that closes", enum(ZERO),
     'edition = "2023";\npackage p;\noption features.enum_type = CLOSED;\n'
     f"enum E {{ {ZERO} }}", ("SYNTAX_CHANGED x.proto", "!SYNTAX_CHANGED p.E")),
    ("extension renumbered",
     old("extensions 100 to 200;") + "extend M { optional string x = 100; }",
     old("extensions 100 to 200;") + "extend M { optional string x = 101; }",
     ("!FIELD_NUMBER_CHANGED p.x",)),
    ("an import is no change", HEAD + 'import "google/protobuf/timestamp.proto";\n'
     "message M { google.protobuf.Timestamp at = 1; }",
     HEAD + 'import "google/protobuf/timestamp.proto";\nimport "google/protobuf/empty.proto";\n'
     "message M { google.protobuf.Timestamp at = 1; google.protobuf.Empty no = 2; }",
     ("FIELD_ADDED_OPTIONAL p.M.no",)),
]  # fmt: skip
