"""The config section `drivers`: where driver files are, what a node may run of them, and how it
chooses between drivers of the same contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from msgspec import field

from interlock.core.config.feature_sections import SectionDefinition
from interlock.core.config.section import (
    Count,
    Duration,
    FeatureSection,
    SecretReference,
    Section,
    Text,
    help_text,
)

SandboxMode = Literal["enforce", "advisory"]


class DriverPolicy(Section, frozen=True):
    """A policy that selects drivers by their policy tags."""

    forbid: Annotated[list[Text], help_text("A driver with any of these tags is never used.")] = (
        field(default_factory=list)
    )
    require: Annotated[list[Text], help_text("Only drivers with all of these tags are used.")] = (
        field(default_factory=list)
    )
    allow: Annotated[
        list[Text], help_text("Only drivers whose tags are all in this list are used.")
    ] = field(default_factory=list)
    trusted_tags: Annotated[
        dict[Text, list[Text]],
        help_text(
            "Drivers whose claim to a tag is trusted: tag → driver ids. A tag that is not listed "
            "here is trusted from every driver."
        ),
    ] = field(default_factory=dict)


class DriversConfig(FeatureSection, frozen=True):
    """Drivers: MCP servers that are declared as files (DRIVER.md) and serve contracts (TOOL.md)."""

    KEY = "drivers"
    RENAMED: ClassVar[Mapping[str, str]] = {"most_processes": "max_processes"}

    enabled: Annotated[bool, help_text("Read and run drivers. false: drivers are ignored.")] = True
    folders: Annotated[
        list[Text],
        help_text("Folders that contain drivers. Each driver is a folder with a DRIVER.md."),
    ] = field(default_factory=lambda: [".drivers"])
    contracts: Annotated[
        list[Text],
        help_text("Folders of contracts that drivers refer to by id. Each contract has a TOOL.md."),
    ] = field(default_factory=lambda: ["tools", ".tools"])
    region: Annotated[
        Text | None, help_text("Use only drivers of this region and global drivers.")
    ] = None
    strict_region: Annotated[bool, help_text("Reject global drivers when `region` is set.")] = False
    policy: DriverPolicy = field(default_factory=DriverPolicy)
    pins: Annotated[
        dict[Text, Text],
        help_text("Contracts that are always served by one driver: contract → driver."),
    ] = field(default_factory=dict)
    secrets: Annotated[
        dict[Text, SecretReference],
        help_text(
            "Values of the secrets in SECRETS.md: slug → reference, such as ${env:NAME}. A value "
            "is available to every driver whose inventory lists the slug (limit: secrets_for)."
        ),
    ] = field(default_factory=dict)
    env_secrets: Annotated[
        list[Text],
        help_text(
            "Variables of the node's environment that may be used as secrets under their own "
            "names. Names or patterns (SHOP_*). Drivers cannot get other variables as secrets."
        ),
    ] = field(default_factory=list)
    env_passthrough: Annotated[
        list[Text],
        help_text(
            "Variables of the node's environment that every driver server inherits. Names or "
            "patterns (LC_*), for values that are not secret, such as TZ or SSL_CERT_FILE. A "
            "server "
            "always has PATH, HOME, LANG, TMPDIR and the variables that its driver declares. A "
            "variable that provides a driver secret is never inherited. A variable that this file "
            "uses elsewhere (${env:NAME}) is inherited only if listed by name, not by a pattern."
        ),
    ] = field(default_factory=list)
    secrets_for: Annotated[
        dict[Text, list[Text]],
        help_text(
            "Limits a secret to certain drivers, in addition to its inventory: slug → driver ids. "
            "A secret that is not listed here is available to all drivers that its inventory "
            "allows."
        ),
    ] = field(default_factory=dict)
    roles: Annotated[
        list[Text], help_text("Roles and capabilities of this node in the access rules of secrets.")
    ] = field(default_factory=list)
    allow_install: Annotated[
        bool, help_text("Allow the node to run the `install` steps of drivers.")
    ] = False
    allow_code: Annotated[
        list[Text],
        help_text("Ids of drivers whose driver.py may run. Each runs in a confined process."),
    ] = field(default_factory=list)
    trust: Annotated[
        list[Text],
        help_text(
            "Public keys (PEM files). If set, only drivers signed with one of them are used."
        ),
    ] = field(default_factory=list)
    sandbox: Annotated[
        SandboxMode,
        help_text(
            "What happens if this machine cannot confine the network of a driver's server. "
            "enforce: the server is not started. advisory: it runs without confinement."
        ),
    ] = "enforce"
    any_egress: Annotated[
        bool, help_text('Allow drivers that declare the whole network (egress: ["*"]).')
    ] = False
    local_egress: Annotated[
        bool,
        help_text(
            "Allow drivers that declare programs on this machine (egress: "
            '["localhost:5432"]). The node itself is never reachable.'
        ),
    ] = False
    verify: Annotated[
        Literal["start", "first_use"],
        help_text(
            "When the tools of a driver's server are first listed. start: when the node starts, a "
            "few servers at a time. first_use: at the first call of one of its contracts."
        ),
    ] = "start"
    idle: Annotated[Duration, help_text("Time after which an unused driver server is stopped.")] = (
        300.0
    )
    max_processes: Annotated[
        Count, help_text("Maximum number of driver servers that run at the same time.")
    ] = 64
    strict: Annotated[
        bool, help_text("Reject a driver for problems that are otherwise only warnings.")
    ] = False
    preview: Annotated[
        bool, help_text("Offer the prompts and resources of drivers (a preview in AIP-32).")
    ] = True


SECTION: Final = SectionDefinition(
    DriversConfig,
    reference=(
        ("`drivers`", DriversConfig, "See [drivers.md](drivers.md)."),
        ("`drivers.policy`", DriverPolicy, ""),
    ),
)
