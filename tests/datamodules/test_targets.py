"""Labels, subclasses and domains, and the hash that tells data sets apart."""

from dataclasses import replace

import numpy as np
import pytest

from datamodules import Catalogue, Targets
from datamodules.targets import array_digest
from tests.helpers.messages import parts

TARGETS = Targets(np.array([0, 0, 1, 1]), np.array([0, 1, 2, 3]), np.array([0, 1, 0, 2]))
CATALOGUE = Catalogue(TARGETS, 3, ("x", "y"), tuple("abcd"), ("one", "two", "three"), "digest")


def test_kinds_are_pairs_of_subclass_and_domain():
    """Three domains: subclass * 3 + domain; no two pairs share a number."""
    assert TARGETS.kinds().tolist() == [0, 4, 6, 11]
    assert replace(TARGETS, fine=None).kinds().tolist() == [0, 1, 3, 5]
    assert replace(TARGETS, domains=None).kinds().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "other"},
        {"num_train": 4},
        {"targets": replace(TARGETS, labels=np.array([0, 1, 1, 1]))},
        {"targets": replace(TARGETS, fine=np.array([0, 1, 3, 2]))},
        {"targets": replace(TARGETS, fine=None)},
        {"targets": replace(TARGETS, domains=np.array([0, 1, 0, 1]))},
        {"targets": replace(TARGETS, domains=None)},
    ],
)
def test_the_content_hash_depends_on_everything_but_names(change):
    assert replace(CATALOGUE, **change).content_hash() != CATALOGUE.content_hash()
    assert replace(CATALOGUE, class_names=("p", "q")).content_hash() == CATALOGUE.content_hash()


def test_the_digest_of_an_array_depends_on_shape_and_values():
    array = np.arange(6, dtype=np.uint8)
    digests = {array_digest(a) for a in (array, array.reshape(2, 3), array[::-1], array[:5])}
    assert len(digests) == 4
    assert array_digest(array.copy()) in digests


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"class_names": ("x",)}, " class numbers ~ 0 to 1 ~ 1 class names"),
        ({"fine_names": tuple("abc")}, "subclass numbers ~ 0 to 3 ~ 3 subclass names"),
        ({"domain_names": ()}, "domain numbers ~ 0 to 2 ~ 0 domain names"),
    ],
)
def test_numbers_without_a_name_are_refused(names, message):
    with pytest.raises(ValueError, match=parts(message)):
        replace(CATALOGUE, **names)


def test_a_name_that_a_terminal_would_obey_is_refused():
    with pytest.raises(ValueError, match=parts(r"'a\x1b[2J' ~ control character")):
        replace(CATALOGUE, class_names=("a\x1b[2J", "b"))
