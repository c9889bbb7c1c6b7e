"""Protocols as state machines that touch no socket, clock, disk or random source."""
