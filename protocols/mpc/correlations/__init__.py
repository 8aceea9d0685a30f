"""Sources of correlated randomness."""
