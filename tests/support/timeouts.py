"""How long a test waits for something that must happen before it calls that a hang.

It is a guard against a suite that never ends, not a bound that any test measures: a machine that is
ten times too busy must not reach it.
"""

from __future__ import annotations

import os
from typing import Final

HANG_TIMEOUT: Final = float(os.environ.get("TEST_HANG_TIMEOUT", "300"))
"""Seconds. Runs in which many tests fail on purpose set a shorter one."""
