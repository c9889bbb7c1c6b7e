"""Programs that answer questions about event streams, one module each."""
