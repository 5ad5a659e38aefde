"""`interlock.yaml`: typed and strict, with an error message for every mistake.

The entry point is `load_config`. The rest: references to secrets, redaction, the difference of two
configs, config files of MCP clients, the JSON Schema for editors, and edits of a config file. The
package reads files and the environment that it is given, and does not depend on a running node.
"""

from __future__ import annotations

from interlock.core.config.checks import (
    check_exposure,
    check_not_self,
    check_token_strength,
    find_exposure_problem,
)
from interlock.core.config.client_configs import (
    ClientConfigFile,
    ClientEntry,
    ClientImport,
    find_client_configs,
    format_import,
    import_client_configs,
    read_client_config,
)
from interlock.core.config.client_secrets import Variable
from interlock.core.config.diff import ConfigChange, diff
from interlock.core.config.edit import add_server
from interlock.core.config.load import DEFAULT_NAME, load_config, parse_config
from interlock.core.config.model import (
    AskConfig,
    BreakerConfig,
    Config,
    Exposure,
    Limits,
    NameStyle,
    OAuthConfig,
    ServerConfig,
    TlsConfig,
    Transport,
)
from interlock.core.config.problems import ConfigError, Problem
from interlock.core.config.quantities import Address
from interlock.core.config.render import to_yaml
from interlock.core.config.schema import config_json_schema
from interlock.core.config.secrets import (
    resolve,
    resolve_server,
    resolve_tls,
    resolve_tokens,
)
from interlock.core.config.trust import (
    AnchorConfig,
    ApprovalsConfig,
    BudgetConfig,
    BudgetsConfig,
    CallerBudget,
    CertificateConfig,
    EffectName,
    IdentityConfig,
    IntrospectionConfig,
    IssuerConfig,
    JournalConfig,
    LearnedRule,
    PinsConfig,
    PolicyConfig,
    RuleConfig,
    TokenConfig,
)
from interlock.core.redaction import is_secret_key, redact, redact_about, redact_pair, redact_server

__all__ = [
    "DEFAULT_NAME",
    "Address",
    "AnchorConfig",
    "ApprovalsConfig",
    "AskConfig",
    "BreakerConfig",
    "BudgetConfig",
    "BudgetsConfig",
    "CallerBudget",
    "CertificateConfig",
    "ClientConfigFile",
    "ClientEntry",
    "ClientImport",
    "Config",
    "ConfigChange",
    "ConfigError",
    "EffectName",
    "Exposure",
    "IdentityConfig",
    "IntrospectionConfig",
    "IssuerConfig",
    "JournalConfig",
    "LearnedRule",
    "Limits",
    "NameStyle",
    "OAuthConfig",
    "PinsConfig",
    "PolicyConfig",
    "Problem",
    "RuleConfig",
    "ServerConfig",
    "TlsConfig",
    "TokenConfig",
    "Transport",
    "Variable",
    "add_server",
    "check_exposure",
    "check_not_self",
    "check_token_strength",
    "config_json_schema",
    "diff",
    "find_client_configs",
    "find_exposure_problem",
    "format_import",
    "import_client_configs",
    "is_secret_key",
    "load_config",
    "parse_config",
    "read_client_config",
    "redact",
    "redact_about",
    "redact_pair",
    "redact_server",
    "resolve",
    "resolve_server",
    "resolve_tls",
    "resolve_tokens",
    "to_yaml",
]
