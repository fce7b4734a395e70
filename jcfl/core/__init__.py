"""The engine: one round, what a client minimises, how uploads are aggregated and evaluated."""
