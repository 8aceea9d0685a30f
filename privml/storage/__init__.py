"""Storage: durable writes, bounded reads."""
