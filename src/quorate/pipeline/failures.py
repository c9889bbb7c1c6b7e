"""The one sentence in what Spark says when a query fails.

A failure passes through Python, Java and Python again on its way to the driver, and each of them
wraps it: a traceback, a stack trace, the plan of the query. What a person can act on is at the
innermost place. Our own errors are sentences already; of others, the last one is the root.
"""

import re
from typing import Final

# What every layer puts around the cause of a failed query.
_PLAN: Final = "=== Streaming Query ==="
_STATE: Final = re.compile(r"\s*SQLSTATE: \w{5}")
_QUERY: Final = re.compile(r"\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")

_OURS: Final = re.compile(r"^(?:Caused by: )?quorate(?:\.\w+)+: (.+)$", re.MULTILINE)
# An error without words is its name alone.
_PYTHON: Final = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:: .+)?)$", re.MULTILINE)
_JAVA: Final = re.compile(r"^(?:Caused by)?: (?:\w+\.)+(\w+): (.+)$", re.MULTILINE)


def spark_errors() -> tuple[type[Exception], ...]:
    """What Spark raises, which only those import who have it."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return Py4JError, PySparkException


def cause_of(error: BaseException) -> str:
    """Why Spark failed, in one line."""
    text = _STATE.sub("", str(error).partition(_PLAN)[0])
    if ours := _OURS.findall(text):
        return str(ours[-1]).strip()
    if "Traceback (most recent call last)" in text and (python := _PYTHON.findall(text)):
        return str(python[-1]).strip()
    if java := _JAVA.findall(text):
        return ": ".join(java[-1]).strip()
    lines = _QUERY.sub("", text).strip().splitlines()
    return lines[0] if lines else type(error).__name__
