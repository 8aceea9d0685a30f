"""Secure computation protocols."""
