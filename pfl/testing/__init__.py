"""The contract of every method, for methods of other projects too.

``check_method(MyMethod)`` in a test, or ``pfl check my_package.MyMethod`` on the command line, hold
a method to every promise on which the loop and the engines rely. The package brings a network and a
federation of a few numbers; it needs no data and no method of this project.
"""

from pfl.testing.contract import PROMISES, check_method
from pfl.testing.promise import BrokenPromiseError, Promise, Subject
from pfl.testing.toy import ToyData, ToyNet, blobs, mlp, normed

__all__ = [
    "PROMISES",
    "BrokenPromiseError",
    "Promise",
    "Subject",
    "ToyData",
    "ToyNet",
    "blobs",
    "check_method",
    "mlp",
    "normed",
]
