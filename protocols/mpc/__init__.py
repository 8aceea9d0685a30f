"""Two-party computation over additive secret sharing."""
