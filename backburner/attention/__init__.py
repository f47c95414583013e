"""Partial attention over pages of K and V: one engine protocol, several engines, and the LogSumExp merge."""
