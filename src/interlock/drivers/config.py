"""What a node is told about drivers: where their files are, what of them it may run, and how it
chooses between those that serve the same contract."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import field

from interlock.core.config.feature_sections import SectionDefinition
from interlock.core.config.section import (
    Count,
    Duration,
    FeatureSection,
    SecretReference,
    Section,
    Text,
    says,
)

SandboxMode = Literal["enforce", "advisory"]


class DriverPolicy(Section, frozen=True):
    """Which drivers may be used, by their policy tags."""

    forbid: Annotated[list[Text], says("A driver with any of these tags is never used.")] = field(
        default_factory=list
    )
    require: Annotated[list[Text], says("Only drivers with all of these tags are used.")] = field(
        default_factory=list
    )
    allow: Annotated[
        list[Text], says("Only drivers are used all of whose tags are among these.")
    ] = field(default_factory=list)
    trusted_tags: Annotated[
        dict[Text, list[Text]],
        says(
            "Which drivers are believed to have a tag: tag → ids. A tag that is not named here is "
            "believed from anybody."
        ),
    ] = field(default_factory=dict)


class DriversConfig(FeatureSection, frozen=True):
    """Drivers: MCP servers that are declared as files (DRIVER.md) and serve contracts (TOOL.md)."""

    KEY = "drivers"

    enabled: Annotated[bool, says("false: no driver is read.")] = True
    folders: Annotated[
        list[Text], says("Folders of drivers; each driver is a folder with a DRIVER.md.")
    ] = field(default_factory=lambda: [".drivers"])
    contracts: Annotated[
        list[Text], says("Folders of contracts that drivers name by their id, each with a TOOL.md.")
    ] = field(default_factory=lambda: ["tools", ".tools"])
    region: Annotated[
        Text | None, says("Only drivers of this region, or global ones, are used.")
    ] = None
    strict_region: Annotated[bool, says("Whether a global driver is not good enough.")] = False
    policy: DriverPolicy = field(default_factory=DriverPolicy)
    pins: Annotated[
        dict[Text, Text], says("Contracts that always go to one driver: contract → driver.")
    ] = field(default_factory=dict)
    secrets: Annotated[
        dict[Text, SecretReference],
        says(
            "What the secrets of SECRETS.md stand for, by slug, by reference: ${env:NAME}. A slug "
            "is used for whichever driver's inventory lists it (see secrets_for)."
        ),
    ] = field(default_factory=dict)
    env_secrets: Annotated[
        list[Text],
        says(
            "Variables of the node's environment that secrets may be taken from by their own "
            "names, as names or patterns (SHOP_*). No others are given to drivers."
        ),
    ] = field(default_factory=list)
    env_passthrough: Annotated[
        list[Text],
        says(
            "Variables of the node's environment that every server of a driver is started with, as "
            "names or patterns (LC_*): for what is no secret, such as TZ or SSL_CERT_FILE. Without "
            "it a server has PATH, HOME, LANG, TMPDIR and what its driver names. A variable that a "
            "secret of drivers is taken from is never among them, and one that this file takes for "
            "something else (${env:NAME}) only by its own name, not by a pattern."
        ),
    ] = field(default_factory=list)
    secrets_for: Annotated[
        dict[Text, list[Text]],
        says(
            "Which drivers may have a secret, whatever its inventory says: slug → ids of drivers. "
            "One that is not named here is for all whom its inventory allows."
        ),
    ] = field(default_factory=dict)
    roles: Annotated[
        list[Text], says("The roles and capabilities that this node has towards secrets.")
    ] = field(default_factory=list)
    allow_install: Annotated[bool, says("Whether what a driver says under install may be run.")] = (
        False
    )
    allow_code: Annotated[
        list[Text], says("Ids of drivers whose driver.py may be run, in a confined process each.")
    ] = field(default_factory=list)
    trust: Annotated[
        list[Text],
        says("Public keys (PEM files). When there are any, only drivers signed by one are used."),
    ] = field(default_factory=list)
    sandbox: Annotated[
        SandboxMode,
        says(
            "advisory: a driver's server runs also where its network cannot be confined on this "
            "machine; enforce refuses it then."
        ),
    ] = "enforce"
    any_egress: Annotated[
        bool, says('Whether a driver may ask for the whole network (egress: ["*"]).')
    ] = False
    local_egress: Annotated[
        bool,
        says(
            "Whether a driver may reach other programs of this machine (egress: "
            '["localhost:5432"]). The node itself it never may.'
        ),
    ] = False
    verify: Annotated[
        Literal["start", "first_use"],
        says(
            "When a driver's server is first asked for its tools: when the node starts, a few at a "
            "time, or when a contract of it is first called."
        ),
    ] = "start"
    idle: Annotated[Duration, says("How long an unused server of a driver is kept.")] = 300.0
    most_processes: Annotated[Count, says("The most servers of drivers that run at once.")] = 64
    strict: Annotated[
        bool, says("Whether a driver is refused for what is otherwise only warned of.")
    ] = False
    preview: Annotated[
        bool, says("Whether prompts and resources of drivers are offered (preview in AIP-32).")
    ] = True


SECTION: Final = SectionDefinition(
    DriversConfig,
    reference=(
        ("`drivers`", DriversConfig, "See [drivers.md](drivers.md)."),
        ("`drivers.policy`", DriverPolicy, ""),
    ),
)
