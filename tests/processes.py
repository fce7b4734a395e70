"""Python processes that tests start."""

CALM = "import gc; gc.disable()\n"
"""The first line of a short program: it imports and traces, of which collecting garbage took 1/5."""
