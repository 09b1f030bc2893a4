"""Numbers and words that no data set can have are refused by name, before anything is read."""

from __future__ import annotations

from functools import partial

import pytest

from datamodules import (
    IID,
    ByDomain,
    ClientDirichlet,
    ConceptDrift,
    CropFlip,
    Digits,
    Dirichlet,
    FixedClasses,
    QuantitySkew,
    Shards,
    Synthetic,
    Unseen,
)
from datamodules.partition.splits import Rule
from tests.helpers.messages import parts, refuses

NAN, INF = float("nan"), float("inf")
digits = partial(Digits, **{"num_clients": 5, "partition": IID()})
synthetic = partial(Synthetic, num_clients=4, partition=ByDomain())


def test_numbers_out_of_range():
    for rule in (Rule, digits):
        refuses(rule, "(0, 1)", test_fraction=(0.0, 1.0))
        refuses(rule, "[0, 1)", val_fraction=(1.0, -0.1))
        refuses(rule, "at least 1", max_samples=0, max_train_samples=0)
    refuses(digits, "at least 1", num_clients=0, batch_size=0, eval_batch_size=0)
    refuses(digits, "positive", std=0.0)
    refuses(digits, "finite", std=NAN, mean=NAN)
    refuses(synthetic, "at least 1", classes=0, domains=0)
    refuses(synthetic, "[0, 1]", label_shift=1.1, concept_shift=-0.1)
    refuses(synthetic, "negative", quantity_shift=-1.0, noise=-1.0)
    refuses(synthetic, "finite", noise=INF, quantity_shift=NAN)
    refuses(CropFlip, "negative", padding=-1)
    refuses(CropFlip, "[0, 1]", flip=1.5)
    refuses(Dirichlet, "positive", alpha=(0, -0.5))
    refuses(ClientDirichlet, "positive", alpha=0)
    refuses(Dirichlet, "negative", min_samples=-1)
    refuses(QuantitySkew, "negative", sigma=-1)
    refuses(Dirichlet, "at least 1", max_tries=0)
    refuses(Shards, "at least 1", shards_per_client=0)
    refuses(FixedClasses, "at least 1", classes_per_client=0)
    refuses(ConceptDrift, "at least 1", subclasses_per_client=0)
    refuses(Dirichlet, "finite", alpha=NAN)
    refuses(ClientDirichlet, "finite", alpha=INF)
    refuses(QuantitySkew, "finite", sigma=INF)
    refuses(Unseen, "(0, 1)", share=1.0)
    refuses(partial(Unseen, share=0.5), "[0, 1)", validation=1.0)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (digits, {"std": []}, "std ~ each channel ~ none"),
        (QuantitySkew, {"quantity": "even"}, "random_cuts, equal, lognormal ~ even"),
        (Rule, {"test_protocol": "futur"}, "test_protocol ~ pooled, ~ future, got 'futur'"),
        (Rule, {"max_train_samples": 9}, "9 ~ test_protocol pooled ~ max_samples"),
        (Unseen, {}, "unseen ~ share ~ by: domain ~ clients"),
        (Unseen, {"share": 0.5, "clients": [1]}, "unseen ~ share ~ clients"),
        (synthetic, {"samples": 3}, "3 samples ~ 4 domains"),
        (synthetic, {"num_clients": None}, "num_clients or domains"),
    ],
)
def test_options_that_cannot_be(make, options, message):
    with pytest.raises(ValueError, match=parts(message)):
        make(**options)
