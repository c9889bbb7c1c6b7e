"""The `quorate` command before any subcommand runs."""

import ast
import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import quorate
from quorate.cli import main as command_line
from quorate.cli.main import SUBCOMMANDS, Subcommand
from quorate.core.errors import ConfigError, QuorumError

SOURCE = Path(quorate.__file__).parent
PRESENT = [row for row in SUBCOMMANDS if find_spec(row.module) is not None]

RUN_AND_TELL_WHAT_WAS_IMPORTED = """
import sys
from quorate.cli.main import main
try:
    main()
finally:
    print(sorted(name for name in sys.modules if name.startswith("quorate.cli.")))
"""


def run(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = None if path is None else {"PYTHONPATH": str(path)}
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def test_version_prints_the_version_and_nothing_else() -> None:
    result = run("-m", "quorate", "--version")

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"quorate {quorate.__version__}\n"


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_no_subcommand_is_imported_before_it_is_called(option: str) -> None:
    result = run("-c", RUN_AND_TELL_WHAT_WAS_IMPORTED, option)

    assert result.stdout.endswith("['quorate.cli.main']\n")


def test_the_help_shows_every_subcommand_that_exists_and_no_other() -> None:
    result = run("-m", "quorate", "--help")

    shown = set(re.findall(r"^│ (\w+) ", result.stdout, re.MULTILINE))
    assert shown == {row.name for row in PRESENT}


@pytest.mark.parametrize("row", PRESENT, ids=lambda row: row.name)
def test_a_subcommand_is_a_typer_app_without_completion_options(row: Subcommand) -> None:
    app = import_module(row.module).app

    options = [
        option for parameter in typer.main.get_command(app).params for option in parameter.opts
    ]

    assert "--install-completion" not in options


def test_every_module_with_an_app_is_in_the_table() -> None:
    modules = [path for path in (SOURCE / "cli").glob("*.py") if path.stem != "main"]

    with_app = {path.stem for path in modules if "app" in assigned_names(path)}

    assert with_app <= {row.name for row in SUBCOMMANDS}


def test_a_mistyped_subcommand_gets_a_suggestion() -> None:
    result = run("-m", "quorate", "tset")

    assert result.returncode == 2
    assert "Did you mean 'test'?" in result.stderr


def test_outside_a_checkout_the_tests_are_refused_with_a_sentence(tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "lib" / "quorate")

    result = run("-m", "quorate", "test", path=tmp_path / "lib")

    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("The tests are not part of an installed package")
    assert result.stderr.count("\n") == 1


def failing_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next call of the command line end in this error."""

    def fail() -> None:
        raise error

    app = typer.Typer(add_completion=False)
    app.command()(fail)
    monkeypatch.setattr(command_line, "app", app)
    monkeypatch.setattr(sys, "argv", ["quorate"])


def exit_code() -> object:
    with pytest.raises(SystemExit) as stopped:
        command_line.main()
    return stopped.value.code


def test_an_error_of_ours_is_one_sentence_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "replica [7] is unknown; known are 0 to 3, " + "and so on " * 20 + "to the end"
    failing_with(ConfigError(sentence), monkeypatch)

    assert exit_code() == 2
    assert capsys.readouterr() == ("", f"{sentence}\n")


def test_whoever_may_try_again_gets_another_exit_code_than_whoever_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing_with(QuorumError("too few answer", {"r1": "is down"}), monkeypatch)

    assert exit_code() == 1
    assert capsys.readouterr() == ("", "too few answer (r1: is down)\n")


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requirements = ["rich>=14", *(f"confluent-kafka>=2; extra == '{e}'" for e in ("all", "kafka"))]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: requirements)
    failing_with(ModuleNotFoundError(name="confluent_kafka"), monkeypatch)

    assert exit_code() == 2
    assert "pip install 'quorate[kafka]'" in capsys.readouterr().err


def test_a_module_that_no_extra_brings_is_a_defect_and_shows_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda _: ["rich>=14"])
    failing_with(ModuleNotFoundError(name="quorate.core.nonesuch"), monkeypatch)

    with pytest.raises(ModuleNotFoundError):
        command_line.main()


def test_control_c_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    failing_with(KeyboardInterrupt(), monkeypatch)

    assert exit_code() == 130


def test_no_arguments_show_the_help() -> None:
    result = CliRunner().invoke(command_line.app, [])

    assert "Usage:" in result.output


def assigned_names(path: Path) -> set[str]:
    return {
        target.id
        for statement in ast.parse(path.read_text()).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
