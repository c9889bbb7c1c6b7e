"""Auditing: what replicas tell of their history is computed again, and compared."""
