"""Quorate: event dissemination between parties that do not trust each other."""

__version__ = "0.1.0"
