"""Data valuation."""
