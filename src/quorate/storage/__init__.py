"""What a replica keeps on disk: a journal, and what is derived from it."""
