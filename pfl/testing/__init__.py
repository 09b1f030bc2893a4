"""The contract that every method must keep, for methods of other projects too.

``check_method(MyMethod)`` in a test, or ``pfl check my_package.MyMethod`` on the command line,
checks every promise that the loop and the engines rely on. The package contains a tiny network and
a tiny federation; it needs no data and no method of this project.
"""

from pfl.testing.contract import PROMISES as PROMISES
from pfl.testing.contract import check_method as check_method
from pfl.testing.promise import BrokenPromiseError as BrokenPromiseError
from pfl.testing.promise import Promise as Promise
from pfl.testing.promise import Subject as Subject
from pfl.testing.promise import suited as suited
from pfl.testing.toy import ToyData as ToyData
from pfl.testing.toy import ToyNet as ToyNet
from pfl.testing.toy import blobs as blobs
from pfl.testing.toy import mlp as mlp
from pfl.testing.toy import normed as normed
