"""Forests that forget a row exactly."""
