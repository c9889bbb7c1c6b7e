"""The ways in which a live topic's batches reach its subscribers."""
