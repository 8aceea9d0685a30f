"""Valuation methods; the names are in :mod:`privml.valuation`."""
