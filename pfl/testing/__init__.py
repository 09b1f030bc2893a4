"""The contract that every method must keep, for methods of other projects too.

``check_method(MyMethod)`` in a test, or ``pfl check my_package.MyMethod`` on the command line,
checks every promise that the loop and the engines rely on. The package contains a tiny network and
a tiny federation; it needs no data and no method of this project.
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
