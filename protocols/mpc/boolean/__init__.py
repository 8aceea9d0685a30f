"""Boolean sharing: comparison and bit conversion."""
