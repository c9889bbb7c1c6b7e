"""Total order: consensus on slots, leader change, and the log that grows from it."""
