"""Where Spark looks for formats that are written in Python: packages whose name begins like this.

Whatever session there is, `format("quorate")` is in it, with nothing to register. Spark asks a
Python process for this once, when a session first meets a format that it does not know.
"""

from quorate.pipeline.source import QuorateSource as DefaultSource

__all__ = ["DefaultSource"]
