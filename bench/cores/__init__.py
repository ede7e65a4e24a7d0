"""How exactly shares get their cores, and what that costs."""
