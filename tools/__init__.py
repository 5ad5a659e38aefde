"""Programs for the development of Interlock. They are not shipped, so nothing in src uses them."""
