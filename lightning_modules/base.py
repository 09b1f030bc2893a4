"""The base class of all methods, under the name by which methods import it."""

from pfl.core.client import ClientModule, ClientOptions, LRSchedule

__all__ = ["ClientModule", "ClientOptions", "LRSchedule"]
