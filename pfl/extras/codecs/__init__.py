"""Codecs of messages: clients and server send fewer bytes."""

from pfl.extras.codecs.codecs import QSGD, Cast, Identity, RandK, Sign, TopK
from pfl.extras.codecs.coding import Codec, Codecs

__all__ = ["QSGD", "Cast", "Codec", "Codecs", "Identity", "RandK", "Sign", "TopK"]
