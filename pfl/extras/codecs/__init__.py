"""Codecs that compress the messages of clients and server."""

from pfl.extras.codecs.codecs import QSGD, Cast, Identity, RandK, Sign, TopK
from pfl.extras.codecs.coding import Codec, Codecs

__all__ = ["QSGD", "Cast", "Codec", "Codecs", "Identity", "RandK", "Sign", "TopK"]
