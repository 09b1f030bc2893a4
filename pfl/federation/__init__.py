"""The rounds: who takes part, what is kept, aggregation, evaluation, checkpoints."""
