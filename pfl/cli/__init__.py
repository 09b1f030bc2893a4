"""The command line: its verbs, the parser, configurations, errors of one sentence."""
