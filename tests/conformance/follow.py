"""A browser whose human agrees to everything: `python -m tests.conformance.follow URL`."""

from __future__ import annotations

import sys
import urllib.request

if __name__ == "__main__":
    with urllib.request.urlopen(sys.argv[1], timeout=300) as page:
        page.read()
