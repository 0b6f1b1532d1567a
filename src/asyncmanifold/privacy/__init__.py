"""Differential privacy: noise, accounting, and a node's own budget and ledger."""
