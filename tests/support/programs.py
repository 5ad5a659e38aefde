"""Real programs that some tests talk to, and the marks that skip a test where one is missing.

`make test` installs them when it can. `from tests.support.programs import NGINX, requires_nginx`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

# Debian keeps nginx in a folder that is not on the PATH of every user.
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])

NGINX = shutil.which("nginx", path=_PATH)
NODE = shutil.which("node", path=_PATH)
NPM = shutil.which("npm", path=_PATH)

CHROMIUM = shutil.which("chromium", path=_PATH)
CHROMEDRIVER = shutil.which("chromedriver", path=_PATH)

_FRAMEWORKS = Path(__file__).parents[2] / ".venv-frameworks"
FRAMEWORKS_PYTHON = _FRAMEWORKS / "bin" / "python"

requires_nginx = pytest.mark.skipif(
    NGINX is None, reason="nginx is not installed: apt-get install nginx-light"
)
requires_node = pytest.mark.skipif(
    NODE is None, reason="node is not installed: apt-get install nodejs"
)
requires_npm = pytest.mark.skipif(
    NODE is None or NPM is None, reason="npm is not installed: apt-get install nodejs npm"
)
requires_browser = pytest.mark.skipif(
    CHROMIUM is None or CHROMEDRIVER is None,
    reason="no browser is installed: apt-get install chromium chromium-driver",
)
requires_frameworks = pytest.mark.skipif(
    not (_FRAMEWORKS / ".ready").exists(),
    reason="the LLM frameworks are not installed: make frameworks",
)
