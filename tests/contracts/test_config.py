"""Tests of the settings of contracts."""

from __future__ import annotations

import pytest

from interlock.contracts.config import ContractsConfig, check_contracts
from interlock.core.config import Config, parse_config
from interlock.core.config.reader import NodeReader


def test_default_settings() -> None:
    assert Config().section(ContractsConfig) == ContractsConfig(
        watch=True, registry=None, on_break="report", serve=True
    )


def test_reads_settings() -> None:
    read = parse_config("contracts: {registry: contracts, on_break: hold, serve: false}")
    assert read.section(ContractsConfig) == ContractsConfig(
        registry="contracts", on_break="hold", serve=False
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"registry": "."}, "a Git repository of its own"),
        ({"registry": "./"}, "a Git repository of its own"),
        ({"registry": "~"}, "a Git repository of its own"),
        ({"registry": "state"}, "this is the state folder of the node"),
        ({"on_break": "hold", "watch": False}, "needs the watch"),
        ({"registry": "contracts"}, ""),
        ({"registry": "../contracts", "on_break": "hold"}, ""),
    ],
)
def test_rejects_conflicting_settings(values: dict[str, object], said: str) -> None:
    told: list[str] = []

    class Reader:
        places = frozenset({("contracts",)})

        def report(self, path: object, message: str, hint: str) -> None:
            assert hint
            told.append(message)

    reader: NodeReader = Reader()  # type: ignore[assignment]
    check_contracts(
        reader,
        {"contracts": ContractsConfig(**values), "state_dir": "state"},  # type: ignore[arg-type]
    )
    assert [said in one for one in told] == ([True] if said else [])
