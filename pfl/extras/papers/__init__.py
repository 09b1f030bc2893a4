"""The runs behind a paper's table: planned from a file, run, resumed, printed."""
