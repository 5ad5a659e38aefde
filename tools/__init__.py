"""Programs for those who work on Interlock. Never shipped with it, so nothing in src uses them."""
