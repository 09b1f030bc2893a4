"""Clients of another file that join a run whose own data are not here (``--join``)."""

FLAG = "--join"
