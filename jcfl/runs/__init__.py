"""Runs: configured, planned, compiled, trained, resumed and swept."""
