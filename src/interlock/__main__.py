"""`python -m interlock`: the same program as `interlock`."""

from __future__ import annotations

import sys

from interlock.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
