"""The division of samples among clients."""
