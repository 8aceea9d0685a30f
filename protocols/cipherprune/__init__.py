"""Encrypted token pruning and polynomial reduction on the two-party engine."""
