"""Verbs of the command line, one module each; loaded only when their verb runs."""
