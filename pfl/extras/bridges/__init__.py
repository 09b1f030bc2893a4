"""Commands for those who come from another framework."""
