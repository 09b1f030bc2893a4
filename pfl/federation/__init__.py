"""The rounds: sampling, kept states, aggregation, evaluation, checkpoints."""
