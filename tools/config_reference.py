"""Print the reference of the config with the sections of all features, `docs/configuration.md`."""

from __future__ import annotations

from interlock.app.features import load_features
from interlock.core.config.reference import config_reference

if __name__ == "__main__":
    load_features()
    print(config_reference(), end="")
