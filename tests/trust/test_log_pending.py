"""The log names the command that decides a pending call."""

from __future__ import annotations

import logging

import pytest

from interlock.core.config import Config
from interlock.trust.approvals.record import APPROVED
from interlock.trust.component import log_pending, node_option
from tests.trust.approvals.test_proofs import approval


@pytest.mark.parametrize(
    ("listen", "options"),
    [
        (Config().listen, ""),
        ("127.0.0.1:18020", " --node 127.0.0.1:18020"),
        # The system chose its port: the config does not say which.
        ("127.0.0.1:0", ""),
    ],
)
def test_log_names_address_of_node(
    caplog: pytest.LogCaptureFixture, listen: str, options: str
) -> None:
    pending = approval()
    with caplog.at_level(logging.INFO, "interlock"):
        log_pending(pending, node_option(listen))
        log_pending(pending.with_state(APPROVED), node_option(listen))
    [record] = caplog.records
    assert record.getMessage().endswith(f": `interlock approve {pending.id}{options}`")
