"""`python -m quorate` is the `quorate` command."""

from quorate.cli.main import main

if __name__ == "__main__":
    main()
