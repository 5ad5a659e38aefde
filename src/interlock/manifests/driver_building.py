"""A DRIVER.md that both schemas accept, as structs. Durations and placeholders are read on the way;
what is wrong with them comes back as problems, because only the reader knows where they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from interlock.config.problems import BadValue, KeyPath
from interlock.manifests.driver import (
    Auth,
    Completion,
    ConnectionOptions,
    Cost,
    DeclaredPrompt,
    DeclaredResource,
    DriverManifest,
    HealthCheck,
    HttpProbe,
    Implements,
    InstallStep,
    Login,
    MappedFrom,
    McpBinding,
    Refresh,
    RemoteAuth,
    Requires,
    Retry,
    ServerBlock,
    VersionCheck,
)
from interlock.manifests.durations import seconds_of

Fault = tuple[KeyPath, BadValue]
"""Where, and what is wrong."""

_NOTHING: Final[dict[str, Any]] = {}
_NO_CONNECTION_OPTIONS: Final = ConnectionOptions()
_ANY_MACHINE: Final = Requires()


def build_driver(
    values: dict[str, Any],
    file: Path,
    *,
    protocol_version: str,
    lines: tuple[int, ...],
    digest: str,
) -> tuple[DriverManifest, list[Fault]]:
    """The manifest of values that are valid, and what only shows when they are taken apart."""
    faults: list[Fault] = []
    is_mcp = values["kind"] == "mcp"
    get = values.get
    manifest = DriverManifest(
        file=file,
        id=values["id"],
        name=values["name"],
        description=values["description"],
        version=values["version"],
        kind=values["kind"],
        implements=tuple(
            _implements(entry, line, mcp=is_mcp)
            for entry, line in zip(values["implements"], lines, strict=True)
        ),
        server=_server(values["server"]) if is_mcp else None,
        transport=values["transport"] if is_mcp else "stdio",
        protocol_version=protocol_version,
        prompts=tuple(_prompt(one) for one in get("prompts", ())) if is_mcp else (),
        resources=tuple(_resource(one) for one in get("resources", ())) if is_mcp else (),
        connection=_connection(get("connection_options")) if is_mcp else _NO_CONNECTION_OPTIONS,
        auth=_auth(values["auth"], faults) if "auth" in values else None,
        install=tuple(
            InstallStep(one["method"], {key: one[key] for key in one if key != "method"})
            for one in get("install", ())
        ),
        version_check=VersionCheck(**values["version_check"])
        if "version_check" in values
        else None,
        health_check=_health(values["health_check"], faults) if "health_check" in values else None,
        egress=tuple(get("network", _NOTHING).get("egress", ())),
        region=tuple(values["region"]) if "region" in values else ("global",),
        policy_tags=tuple(get("policy_tags", ())),
        tags=tuple(get("tags", ())),
        requires=_requires(values["requires"]) if "requires" in values else _ANY_MACHINE,
        cost=_cost(get("cost_override")),
        timeout_override_ms=get("timeout_override_ms"),
        retry=_retry(get("retry_override")),
        metadata=get("metadata", {}),
        runner=get("runner", {}),
        source=values,
        digest=digest,
    )
    return manifest, faults


def _implements(entry: dict[str, Any], line: int, *, mcp: bool) -> Implements:
    get = entry.get
    metadata = get("metadata", _NOTHING)
    narrowing = get("schema_narrowing", _NOTHING)
    binding = metadata.get("mcp") if mcp else None
    mapping = get("mapping")
    return Implements(
        tool=entry["tool"],
        version=entry["version"],
        line=line,
        drop_inputs=tuple(narrowing.get("drop_inputs", ())),
        drop_outputs=tuple(narrowing.get("drop_outputs", ())),
        mapping={key: _mapped(value) for key, value in mapping.items()} if mapping else {},
        cost=_cost(get("cost_override")),
        timeout_override_ms=get("timeout_override_ms"),
        retry=_retry(get("retry_override")),
        mcp=McpBinding(**binding) if binding else None,
        metadata=metadata if metadata is not _NOTHING else {},
    )


def _mapped(value: str | dict[str, str]) -> str | MappedFrom:
    if isinstance(value, str):
        return value
    return MappedFrom(value["from"], value.get("transform", ""))


def _server(block: dict[str, Any]) -> ServerBlock:
    get = block.get
    auth = get("auth")
    return ServerBlock(
        kind=block["kind"],
        path=get("path", ""),
        package=get("package", ""),
        image=get("image", ""),
        url=get("url", ""),
        args=tuple(get("args", ())),
        env=get("env", {}),
        auth=_remote_auth(auth) if auth else None,
        port=get("port"),
    )


def _remote_auth(auth: dict[str, str]) -> RemoteAuth:
    secret = auth["secret"].removeprefix("${secrets.").removesuffix("}")
    return RemoteAuth(
        type="bearer" if auth["type"] == "bearer" else "header",
        secret=secret,
        header=auth.get("header", "Authorization"),
    )


def _prompt(one: dict[str, Any]) -> DeclaredPrompt:
    return DeclaredPrompt(**one)


def _resource(one: dict[str, Any]) -> DeclaredResource:
    return DeclaredResource(**one)


def _connection(options: dict[str, Any] | None) -> ConnectionOptions:
    return ConnectionOptions(**options) if options else _NO_CONNECTION_OPTIONS


def _auth(auth: dict[str, Any], faults: list[Fault]) -> Auth:
    state = auth.get("state", _NOTHING)
    detect = auth.get("expiry", _NOTHING).get("detect", ())
    return Auth(
        ref=auth.get("ref", ""),
        state_paths=tuple(state.get("paths", ())),
        state_env=tuple(state.get("env", ())),
        login=_login(auth["login"]) if "login" in auth else None,
        refresh=_refresh(auth["refresh"], faults) if "refresh" in auth else None,
        expiry_detect=(detect,) if isinstance(detect, str) else tuple(detect),
    )


def _login(login: dict[str, Any]) -> Login:
    completes = login.get("completes_when")
    return Login(
        cmd=login.get("cmd", ""),
        url=login.get("url", ""),
        interactive=login.get("interactive", False),
        requires_callback_url=login.get("requires_callback_url", False),
        completes_when=_completion(completes) if completes is not None else None,
    )


def _completion(completes: dict[str, Any]) -> Completion:
    http = completes.get("http")
    return Completion(
        cmd=completes.get("cmd", ""),
        exit_code=completes.get("exit_code", 0),
        http=HttpProbe(**http) if http else None,
    )


def _refresh(refresh: dict[str, Any], faults: list[Fault]) -> Refresh:
    every = _seconds(refresh.get("every"), ("auth", "refresh", "every"), faults)
    return Refresh(cmd=refresh.get("cmd", ""), url=refresh.get("url", ""), every=every)


def _health(check: dict[str, Any], faults: list[Fault]) -> HealthCheck:
    http = check.get("http")
    every = _seconds(check.get("every"), ("health_check", "every"), faults)
    return HealthCheck(
        method=check["method"],
        cmd=check.get("cmd", ""),
        http=HttpProbe(**http) if http else None,
        expect_exit=check.get("expect_exit", 0),
        every=every if every is not None else 300.0,
        timeout_ms=check.get("timeout_ms", 5000),
    )


def _seconds(text: str | None, path: KeyPath, faults: list[Fault]) -> float | None:
    if text is None:
        return None
    try:
        return seconds_of(text)
    except BadValue as bad:
        faults.append((path, bad))
        return None


def _requires(block: dict[str, Any]) -> Requires:
    return Requires(
        os=tuple(block.get("os", ())),
        arch=tuple(block.get("arch", ())),
        min_disk_mb=block.get("min_disk_mb", 0),
        min_memory_mb=block.get("min_memory_mb", 0),
    )


def _cost(block: dict[str, Any] | None) -> Cost | None:
    if block is None:
        return None
    return Cost(
        cost_class=block.get("cost_class"),
        units_per_call=block.get("cost_units_per_call"),
        currency=block.get("currency", ""),
    )


def _retry(block: dict[str, Any] | None) -> Retry | None:
    return Retry(**block) if block is not None else None
