"""Durable storage: numbered steps, crash-safe files, new files whole or not at all."""
