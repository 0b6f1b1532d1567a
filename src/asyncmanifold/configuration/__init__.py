"""Configurations: scenarios, tables and the parts that they can name."""
