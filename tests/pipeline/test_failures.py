"""The one sentence in what Spark says. The texts are those of Spark 4.3, shortened."""

import pytest

from quorate.pipeline.failures import cause_of

PLAN = """ SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = cd762643, runId = 5625dc94]
Current Committed Offsets: {}

Logical Plan:
WriteToMicroBatchDataSource quorate
"""
BEGINNING = "[STREAM_FAILED] Query [id = cd762643, runId = 5625dc94] terminated with exception: "

OURS = f"""{BEGINNING}[PYTHON_EXCEPTION] An exception was thrown from the Python worker: \
Traceback (most recent call last):
  File "source.py", line 16, in read
    raise ConfigError("there is no topic 'x'")
quorate.core.errors.ConfigError: there is no topic 'x'; this cluster has a, b
{PLAN}"""

OURS_AND_THEN_ANOTHER = f"""{BEGINNING}[PYTHON_DATA_SOURCE_ERROR] Failed to plan: \
Traceback (most recent call last):
  File "source.py", line 36, in streamReader
quorate.core.errors.QuorumError: too few replicas answer (r1: is down)

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "python_streaming_source_runner.py", line 295, in main
UnboundLocalError: cannot access local variable 'reader'
{PLAN}"""

ANOTHERS = f"""{BEGINNING}[PYTHON_EXCEPTION] An exception was thrown from the Python worker: \
Traceback (most recent call last):
  File "job.py", line 15, in patient
    yield batch.append_column("package", [])
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
pyarrow.lib.ArrowInvalid: Added column's length must match record batch's length.
{PLAN}"""

JAVAS = """An error occurred while calling o66.start.
: java.io.IOException: Cannot run program "chmod": Exec failed, error: 2
\tat java.base/java.lang.ProcessBuilder.start(Unknown Source)
Caused by: java.io.IOException: Exec failed, error: 2 (No such file or directory)
\t... 44 more
"""

SPARKS = f"{BEGINNING}[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred.{PLAN}"


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (OURS, "there is no topic 'x'; this cluster has a, b"),
        (OURS_AND_THEN_ANOTHER, "too few replicas answer (r1: is down)"),
        (
            ANOTHERS,
            "pyarrow.lib.ArrowInvalid: Added column's length must match record batch's length.",
        ),
        (JAVAS, "IOException: Exec failed, error: 2 (No such file or directory)"),
        (SPARKS, "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred."),
        ("", "RuntimeError"),
    ],
)
def test_the_innermost_cause_is_found(said: str, cause: str) -> None:
    assert cause_of(RuntimeError(said)) == cause
