"""The `quorate` command: one module per subcommand, listed in `main`."""
