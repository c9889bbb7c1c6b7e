"""The words of the domain: events, batches, contracts, messages and their encoding."""
