"""Exact shortcuts: they change how long a round takes, not what it computes."""
