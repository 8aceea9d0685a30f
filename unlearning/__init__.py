"""Exact unlearning."""
