"""Additive sharing: truncation and products."""
