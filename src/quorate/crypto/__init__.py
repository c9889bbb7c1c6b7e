"""Who says so: digests, identities, signatures and message authentication codes."""
