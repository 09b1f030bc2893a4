"""Random pairings of methods, clients and options: engines agree, and a resumed run repeats."""

from __future__ import annotations

from functools import partial
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_modules.fedmd import FedMD
from pfl.core.failure import NonFiniteError
from pfl.core.seeds import scoped
from pfl.federation.run import Callback
from pfl.federation.sampling import BernoulliSampler, FixedStragglers, UniformSampler
from pfl.loop import FederatedLoop
from tests.engines.agreement import module_of, numbers, same
from tests.helpers.discovery import methods, test_module
from tests.helpers.extras import has
from tests.helpers.toy import blobs, mlp, normed

# Many clients are too small for what is drawn, and methods warn of it.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
REFUSED = (ValueError, NonFiniteError)
SAMPLERS = (
    UniformSampler(),
    UniformSampler(0.5),
    UniformSampler(0.4, train_all=True),
    UniformSampler(0.6, numpy_seed=3),
    BernoulliSampler(0.4, minimum=1),
    BernoulliSampler(0.4, minimum=0, train_all=False),
    FixedStragglers(0.5, 0.3),
)


@st.composite
def settings_of_data(draw):
    """Draw clients, some without samples of a split, some held out, and how they are batched."""
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 13, 17]), min_size=2, max_size=7))
    some = st.sets(st.integers(0, len(sizes) - 1), max_size=2)
    return {
        "sizes": sizes,
        "pooled": draw(st.booleans()),
        "batch_size": draw(st.sampled_from([1, 2, 4, 5, 32])),
        "drop_last": draw(st.booleans()),
        "shuffle": draw(st.booleans()),
        "without": {"test": draw(some), "val": draw(some)},
        "held_out": draw(some),
    }


def data_of(drawn):
    data = blobs(drawn["sizes"], pooled=drawn["pooled"], batch_size=drawn["batch_size"])
    for split, clients in drawn["without"].items():
        for client in clients:
            x, y = data.splits[split][client]
            data.splits[split][client] = x[:0], y[:0]
    data.drop_last, data.shuffle = drawn["drop_last"], drawn["shuffle"]
    data.apart = {"unseen": sorted(drawn["held_out"])}
    return data


UPLINKS = [None]
if has("codecs"):
    from pfl.extras.codecs import QSGD, Cast, Sign, TopK

    UPLINKS += [[codec()] for codec in (Cast, QSGD, TopK, Sign)]
JOINING = st.none()
if has("newcomers"):
    from pfl.extras.newcomers.newcomers import Newcomers

    JOINING = st.builds(
        lambda every, rounds: [Newcomers(every, rounds, tune_epochs=1)],
        st.sampled_from([None, 1]),
        st.integers(0, 2),
    )
OPTIONS = st.fixed_dictionaries(
    {
        "sampler": st.sampled_from(SAMPLERS),
        "rounds": st.integers(2, 4),
        "evaluate_every": st.integers(1, 3),
        "evaluate_from": st.sampled_from([None, 2]),
        "evaluate_clients": st.sampled_from([None, 1, 2]),
        "evaluate_at": st.sampled_from([None, ["post_local"], ["post_broadcast", "post_local"]]),
        "evaluations": JOINING,
        "gradient_clip_val": st.sampled_from([None, 0.1]),
        "uplink": st.sampled_from(UPLINKS),
        "on_nonfinite": st.sampled_from(["stop", "skip"]),
        "kept_memory": st.sampled_from([None, 0, 1e-6]),
        "checkpoint_every": st.sampled_from([1, 2, 10]),
        "seed": st.integers(0, 99),
    }
)
METHODS = methods()
for method in METHODS:
    test_module(method)  # its first import within a property test would nest two of them
EVERYTHING = st.tuples(
    st.sampled_from(METHODS),
    st.sampled_from([mlp, partial(normed, bias=False)]),
    settings_of_data(),
    OPTIONS,
)


class Stop(Callback):
    """Interrupts a run after a round."""

    def __init__(self, after):
        self.after = after

    def on_round_end(self, run, result):
        if run.server.round == self.after:
            raise KeyboardInterrupt


def fitted(engine, method, net, data, options, ckpt_path=None, **more):
    """Return the run, or the type and the first line of the error that refuses it."""
    given = {}
    if method is FedMD:
        # The first client's samples are public. A client alone differs from its consensus by
        # rounding, whose sign is the slope of the default loss.
        given = {"public_samples": max(1, data["sizes"][0]), "digest_loss": "mse"}
    with scoped(0):
        module = module_of(method, net, **given)
    options = {"precision": "64-true", "progress": False, **options, **more}
    try:
        return FederatedLoop(engine=engine, **options).fit(module, data_of(data), ckpt_path)
    except REFUSED as error:
        return type(error), str(error).partition("\n")[0]


def check(*drawn):
    """Compare engines; then interrupt a run of each, and resume it."""
    alone = fitted("sequential", *drawn)
    if isinstance(alone, tuple):
        assert alone == fitted("threads", *drawn) == fitted("vectorised", *drawn)
        return
    stacked = fitted("vectorised", *drawn)
    assert same(fitted("threads", *drawn), alone)
    for row, right in zip(numbers(stacked), numbers(alone), strict=True):
        assert row == pytest.approx(right, rel=1e-6, abs=1e-6, nan_ok=True)
    for engine, whole in (("sequential", alone), ("vectorised", stacked)):
        with TemporaryDirectory() as root:
            place = {"default_root_dir": root, "name": "run"}
            with pytest.raises(KeyboardInterrupt):
                fitted(engine, *drawn, callbacks=[Stop(drawn[-1]["rounds"] - 1)], **place)
            assert same(fitted(engine, *drawn, ckpt_path="last", **place), whole)


@pytest.mark.long
@given(EVERYTHING)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_pairings(drawn):
    """Twelve federations run under three engines, are interrupted and resumed: over ten seconds."""
    check(*drawn)


@pytest.mark.slow
@given(EVERYTHING)
@settings(max_examples=500, deadline=None)
def test_many_pairings(drawn):
    check(*drawn)
