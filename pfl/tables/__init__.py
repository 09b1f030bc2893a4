"""The grid of runs behind a paper's table: read, run, resumed and printed."""
