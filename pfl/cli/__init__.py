"""The command line: commands, parser, configurations and one-line errors."""
