"""Non-linear functions."""
