"""A site with a few goods. The variable SITE has its name."""

from __future__ import annotations

import os

from interlock.tree.subserver import Subserver

SITE = os.environ.get("SITE", "unknown")
GOODS = {"bolts": len(SITE) * 100, "nuts": len(SITE) * 90}

site = Subserver("site")


@site.tool(latency_class="fast", mutable=False)
def where() -> str:
    """Return the name of the site."""
    return SITE


@site.tool(latency_class="fast", mutable=False)
def stock(item: str) -> dict[str, object]:
    """Return the number of an item at this site."""
    return {"site": SITE, "item": item, "count": GOODS.get(item, 0)}


if __name__ == "__main__":
    site.run()
