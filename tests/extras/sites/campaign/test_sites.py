"""Sites, lines and servers that fail at random: the same numbers in the end, or one sentence."""

from __future__ import annotations

import copy
import json
import warnings

import pytest

from lightning_modules.fedper import FedPer
from lightning_modules.scaffold import SCAFFOLD
from pfl.disk import container
from pfl.extras.codecs.coding import Codecs, codecs
from pfl.extras.sites.transport import SiteError
from pfl.federation.sampling import UniformSampler
from tests.campaign.mutate import places
from tests.extras.sites.sites import Garbles, Recorded, fit
from tests.helpers.discovery import build
from tests.helpers.federation import HEAVY
from tests.helpers.toy import blobs, mlp

pytestmark = pytest.mark.campaign

SIZES, ROUNDS = (4, 9, 2, 6), 4
# Calls of a run, about.
CALLS = ROUNDS * 7


def module(draw):
    if draw.random() < 0.5:
        return FedPer(mlp(), optimizer=HEAVY, persist_optimizer=True)
    return build(SCAFFOLD, mlp())


def test_a_site_answers_whatever_it_is_sent(case, draw, tmp_path):
    """A message with a right checksum and wrong content is refused, or is a right one."""
    engine = Recorded(tmp_path)
    fit(module(draw), engine, 1, blobs(SIZES))
    for _ in range(20):
        sent = draw.choice([call for call in engine.calls if call.verb != "bye"])
        content, tensors = container.unpack(sent.sent)
        content, names = mutated(draw, content), list(tensors)
        if names and draw.random() < 0.5:
            name = draw.choice(names)
            value = tensors.pop(name)
            others = [value[..., :1], value.double(), value * float("nan"), value.bool()]
            tensors[draw.choice([name, f"{name}.x", "shared:", "kept:a", name.upper()])] = (
                draw.choice(others)
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                packed = container.pack(content, tensors)
            except ValueError:
                continue
            answer = engine.at[sent.client].answer(sent.verb, packed)
        told, _ = container.unpack(answer)
        assert set(told) <= {sent.verb, "error"}
        if "error" in told:
            assert "\n" not in told["error"]["message"]
        json.dumps(told, allow_nan=False)
    # It still does what it is rightly asked.
    for call in (call for call in engine.calls if call.client == sent.client):
        assert engine.at[call.client].answer(call.verb, call.sent) == call.answer


def mutated(draw, content):
    """Return a content of which one value is another one, or is missing."""
    content = copy.deepcopy(content)
    where, key = draw.choice(places(content))
    if isinstance(where, dict) and draw.random() < 0.2:
        del where[key]
        return content
    where[key] = draw.choice(
        [None, True, -1, 0, 2**62, -(2**62), 10**30, 0.5, 1e300, "", "nan", "../..", [], {}, [[]]]
    )
    return content


def false(draw, answer):
    """Return an answer with a right checksum that says or sends something else."""
    content, tensors = container.unpack(answer)
    if tensors and draw.random() < 0.5:
        name = draw.choice(list(tensors))
        value = tensors.pop(name)
        others = [value.flatten()[:1], value.double(), value * float("nan"), value.bool()]
        others += [value.int(), value[None], value.flatten(), value.new_zeros(0)]
        place = draw.choice([name, name, f"{name}.x", f"{name}:value", "shared:", "extra:a"])
        tensors[place] = draw.choice(others)
    else:
        content = mutated(draw, content)
    try:
        return container.pack(content, tensors)
    except ValueError:
        return answer


def test_a_false_answer_ends_the_run_in_one_sentence_or_harms_nobody_else(case, draw, tmp_path):
    """Or it is a right one: nobody can see that a loss or a weight is another number."""
    verb, turn = draw.choice(["hello", "train", "train", "test"]), draw.randrange(1, 3)
    up = draw.choice(["identity", "identity", *codecs()])
    engine, told = Garbles(tmp_path, lambda answer: false(draw, answer), verb, turn), ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = fit(
                module(draw),
                engine,
                2,
                blobs(SIZES),
                sampler=UniformSampler(1.0),
                uplink=[Codecs(up=up)],
                on_nonfinite="skip",
            )
    except SiteError as error:
        told = str(error)
    if told:
        assert "the site of client 1" in told
        assert "\n" not in told
    else:
        assert all(value.isfinite().all() for value in run.server.shared.values())
        assert {0, 2, 3} <= {*run.kept}
