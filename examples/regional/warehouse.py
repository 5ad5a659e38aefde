"""A site with a few goods. Which one it is stands in its environment."""

from __future__ import annotations

import os

from interlock.tree.subserver import Subserver

SITE = os.environ.get("SITE", "nowhere")
GOODS = {"bolts": len(SITE) * 100, "nuts": len(SITE) * 90}

site = Subserver("site")


@site.tool(latency_class="fast", mutable=False)
def where() -> str:
    """Which site this is."""
    return SITE


@site.tool(latency_class="fast", mutable=False)
def stock(item: str) -> dict[str, object]:
    """How many of an item are here."""
    return {"site": SITE, "item": item, "count": GOODS.get(item, 0)}


if __name__ == "__main__":
    site.run()
