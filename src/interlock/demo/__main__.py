"""`python -m interlock.demo`."""

from __future__ import annotations

from interlock.demo.server import main

if __name__ == "__main__":
    main()
