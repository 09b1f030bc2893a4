"""Sites, lines and servers that fail at random: the same numbers in the end, or one sentence."""

from __future__ import annotations

import copy
import json
import math
import warnings
from types import SimpleNamespace

import pytest

from lightning_modules.fedper import FedPer
from lightning_modules.scaffold import SCAFFOLD
from pfl.core.types import Phase
from pfl.disk import container
from pfl.engines.transport import wire
from pfl.extras.codecs.coding import Codecs, codecs
from pfl.extras.sites.transport import SiteError
from pfl.federation.rows import of_training
from pfl.federation.sampling import UniformSampler
from tests.campaign.mutate import places
from tests.extras.sites.lies import OF_LENGTH, TESTING, TRAINING, Liar, Rounds, fills
from tests.extras.sites.sites import Faulty, Garbles, Recorded, everyone, fit, same
from tests.helpers.discovery import build, methods
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


def any_module(draw):
    """Return what builds one of all methods."""
    method = draw.choice(methods())
    print(method.__name__)
    return lambda: build(method, mlp())


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
        assert set(told) <= {sent.verb, "failure", "unread"}
        for error in {"failure", "unread"} & {*told}:
            assert "\n" not in told[error]["message"]
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


# Of a method that keeps something, and of its first weight.
OF_ONE_METHOD = ("weights of", "weights that are", "no kept", "the kept", "a kept", "no upload")
GENERAL = {name: lie for name, lie in TRAINING.items() if not name.startswith(OF_ONE_METHOD)}


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


class Spoils(Recorded):
    """Some of client 1's answers have numbers that are not finite or out of range.

    Args:
        folder: The sites' folder.
        spoilt: Makes of an answer another one.
        rounds: The rounds of its trainings of which the answers are spoilt.
    """

    def __init__(self, folder, spoilt, rounds, **options):
        super().__init__(folder, after=self.answered, **options)
        self.spoilt, self.rounds = spoilt, rounds

    def answered(self, client, verb, content, answer):
        if (client, verb) != (1, "train"):
            return answer
        number = container.unpack(content)[0]["train"]["round"]
        return self.spoilt(answer, []) if number in self.rounds else answer


def ended(make, engine, **options):
    """Return a run with a faulty site, which must end, and who failed in each round."""
    rounds = Rounds()
    options = {"sampler": everyone, "callbacks": [rounds], "on_nonfinite": "skip", **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = fit(make(), engine, ROUNDS, blobs(SIZES), **options)
    assert run.round == ROUNDS
    return run, [{*failed} for failed in rounds.failed]


def silent(make, folder, verb, failed):
    """Return a run in which client 1 gives no answers in the rounds in which it failed."""
    faults = {(1, n, verb): "silence" for n, who in enumerate(failed, 1) if who}
    engine = Faulty(folder, faults, on_error="absent")
    return ended(make, engine)[0], engine


def test_numbers_that_are_not_finite_or_too_large_harm_nobody_else(case, draw, tmp_path):
    """Of any method, in the weights or beside them: nobody else is left out in any round."""
    make, kinds = any_module(draw), draw.choice([("shared",), ("extra",), ("shared", "extra")])
    value = draw.choice([math.nan, math.inf, -math.inf, 1e30, -1e30])
    numbers = {number for number in range(1, ROUNDS + 1) if draw.random() < 0.5}
    print(kinds, value, numbers)
    engine = Spoils(tmp_path / "false", fills(value, *kinds), numbers, on_error="absent")
    run, failed = ended(make, engine)
    assert all(who <= {1} for who in failed)
    spared = make().extra_nonfinite
    if not spared:
        # What is left are the bits of a run in which client 1 was silent, and so was not tested.
        right, _ = silent(make, tmp_path / "silent", "train", failed)
        assert same(run, right, ("test/", "val/"))


@pytest.mark.parametrize("verb", ["train", "test"])
def test_a_lie_is_named_under_any_method(verb, case, draw, tmp_path):
    """Replays, numbers out of range and false names discard their client, and nobody else.

    Only how long a client trained is believed, up to its plan, where a phase may end early.
    """
    make = any_module(draw)
    lies = {"train": GENERAL, "test": TESTING}[verb]
    name = draw.choice([*lies])
    print(name)
    liar = Liar(tmp_path / "false", lies[name], verb, on_error="absent")
    run, failed = ended(make, liar)
    assert failed in ([set(), {1}, set(), set()], [set()] * ROUNDS)
    right, sites = silent(make, tmp_path / "silent", verb, failed)
    if verb == "test" or any(failed):
        # A client whose numbers are not finite is still tested.
        assert same(run, right, ("test/", "val/") if name in NOT_FINITE else ())
        return
    early = any(part.until for part in make().plan() if isinstance(part, Phase))
    assert not liar.lies or (early and name in OF_LENGTH)
    assert same(run, right, ("train/",))
    told = reports(call.answer for call in liar.of("train"))
    assert told == reports(call.answer for call in sites.of("train"))
    told |= reports(liar.lies)
    for row in run.history:
        results = {client: one for (number, client), one in told.items() if number == row["round"]}
        assert row.items() >= of_training(results, 0).items()


NOT_FINITE = ("a loss that is NaN", "a loss that is infinite")


def reports(answers):
    """Return what sites say of trainings, by round and client."""
    read = (wire.read({"train": wire.Report}, answer)[0] for answer in answers)
    return {
        (one.round, one.client): SimpleNamespace(
            train=one.train.read(), steps=one.steps, samples=one.samples
        )
        for one in read
    }
