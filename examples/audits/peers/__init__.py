"""Adapters to other toolkits; each runs in a process and an environment of its own."""
