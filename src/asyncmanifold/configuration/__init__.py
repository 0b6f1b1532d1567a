"""Configurations: scenarios, TOML tables and the parts that they can name."""
