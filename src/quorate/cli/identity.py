"""`quorate identity`: keys that are made where they stay."""

from pathlib import Path
from typing import Annotated

import typer

from quorate.core.errors import ConfigError
from quorate.crypto.identity import Identity
from quorate.runtime.files import write_identity, write_public

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", no_args_is_help=True)


@app.callback()
def identity() -> None:
    """Make a party's keys, on the machine where they stay."""


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="What the cluster will call this member.")],
    directory: Annotated[Path, typer.Option(help="Where to write the two files.")] = Path(),
) -> None:
    """Make new keys: NAME.key stays here, NAME.pub is for the others."""
    made = Identity.generate(name)
    private, public = directory / f"{name}.key", directory / f"{name}.pub"
    for path in (private, public):
        if path.exists():
            raise ConfigError(f"{path} exists already; choose another name or directory")
    write_identity(private, made)
    write_public(public, made.public)
    typer.echo(
        f"  {private}   private: keep it here, copy it to nobody\n"
        f"  {public}   public: hand it to whoever assembles the cluster\n"
        f"Next   quorate cluster assemble --help, or add-client --help for a cluster that runs"
    )
