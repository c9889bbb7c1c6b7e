"""`quorate test`: the project's own tests, as pytest runs them.

The process becomes pytest, so that its exit code, its closing line and its answer to Ctrl-C
are its own. Tests that start real replicas carry `@pytest.mark.xdist_group("processes")`:
they run one after another on one worker, while the others use the rest of the machine.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import typer

import quorate
from quorate.core.errors import QuorateError

WORKERS_MIN, WORKERS_MAX = 2, 8

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="[PYTEST OPTIONS AND PATHS]...",
)
def test(context: typer.Context) -> None:
    """Run the project's own tests.

    Whatever follows is for pytest, for example `quorate test tests/core -k quorum`. Paths are
    relative to the project's root.
    """
    root = _source_checkout()
    _require_tools()
    workers = min(max(os.cpu_count() or 1, WORKERS_MIN), WORKERS_MAX)
    parallel = ["-n", str(workers), "--dist", "loadgroup"]
    os.chdir(root)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *parallel, *context.args])


def _source_checkout() -> Path:
    root = Path(quorate.__file__).resolve().parents[2]
    if not (root / "pyproject.toml").is_file() or not (root / "tests").is_dir():
        raise QuorateError(
            "The tests are not part of an installed package: "
            "run ./quorate test at the root of a source checkout."
        )
    return root


def _require_tools() -> None:
    missing = [name for name in ("pytest", "xdist", "hypothesis") if find_spec(name) is None]
    if missing:
        raise QuorateError(
            f"The tests need {', '.join(missing)}: "
            "run ./quorate test, which installs them, or install quorate[dev]."
        )
