"""The base class of all methods, re-exported for the method files."""

from pfl.core.client import ClientModule, ClientOptions, LRSchedule

__all__ = ["ClientModule", "ClientOptions", "LRSchedule"]
