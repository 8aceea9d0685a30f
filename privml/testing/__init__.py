"""Harness for testing protocols, shipped so that users can test their own."""
