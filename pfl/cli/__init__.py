"""The command line: its verbs, the parser, configurations, one-line errors."""
