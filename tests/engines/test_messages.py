"""What any writer of a message or a file of tensors writes, its reader reads, and nothing else."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic.dataclasses import dataclass

from pfl.core.ranges import MOST
from pfl.core.state import each_sound, moderate
from pfl.core.types import (
    Broadcast,
    ClientStep,
    ClientWork,
    Drawn,
    Names,
    Result,
    Ticket,
    Upload,
)
from pfl.disk import container
from pfl.disk.container import ContainerError
from pfl.disk.form import STRICT
from pfl.engines.transport import wire
from pfl.engines.transport.clients import plain, report_of

SOME = settings(max_examples=150, derandomize=True, deadline=None)
MANY = settings(SOME, max_examples=2000)
SPLITS = ("train", "val", "test", "pooled")

hexadecimal = "0123456789abcdef"
keys = st.text(hexadecimal, min_size=32, max_size=32)
hashes = st.text(hexadecimal, min_size=64, max_size=64)
rounds = st.integers(0, 10**9 - 1)
counts = st.integers(0, 2**63 - 1)
sizes = st.integers(0, 10**9)
names = st.text(st.characters(codec="utf-8"), max_size=30)
# All that a computation can give.
numbers = st.floats() | st.integers(-(2**53), 2**53)
named = st.dictionaries(names, numbers, max_size=5)
scores = st.dictionaries(st.sampled_from(SPLITS), named, max_size=4)
tickets = st.none() | st.builds(Ticket, hashes, rounds)
identities = st.fixed_dictionaries(
    {"run": keys, "client": counts, "round": rounds, "question": hashes}
)
questions = st.fixed_dictionaries({"run": keys, "client": counts, "round": rounds})


@dataclass(frozen=True, config=STRICT)
class Marked(ClientStep):
    """A step with fields of many kinds."""

    share: float
    count: int
    name: str
    entries: Names
    perhaps: int | None = None


@dataclass(frozen=True)
class Worked(ClientWork):
    """Work with fields."""

    count: int
    name: str

    def done(self, context, job):
        raise NotImplementedError


steps = st.builds(
    Marked,
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**63), 2**63 - 1),
    names,
    st.lists(names, max_size=3).map(tuple),
    st.none() | st.integers(0, 9),
)
orders = st.builds(
    lambda asked, made, carried: wire.Order(
        **asked, **made, steps=[*map(wire.StepRecord.of, carried)]
    ),
    questions,
    st.fixed_dictionaries(
        {
            "rounds": rounds,
            "seed": counts,
            "splits": st.lists(st.sampled_from(SPLITS), max_size=4),
            "model": st.sampled_from(["personal", "global"]),
            "sent": st.booleans(),
            "op_threads": st.integers(1, 256),
            "codec": st.none() | steps.map(wire.StepRecord.of),
            "kept": tickets,
        }
    ),
    st.lists(steps, max_size=16),
)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
noise = st.builds(
    Drawn,
    batches=st.integers(1, 2**31 - 1),
    steps=st.integers(1, 2**63 - 1),
    clip=positive,
    sigma=positive | st.just(0.0),
)
reports = st.builds(
    lambda identity, made, kept: replace(
        report_of(Result(identity["client"], **made), identity), kept=kept
    ),
    identities,
    st.fixed_dictionaries(
        {
            "upload": st.none() | st.builds(Upload, counts, sizes, st.just({})),
            "kept": st.just({}),
            "train": named,
            "steps": st.integers(0, 10**9),
            "samples": st.integers(0, 10**12),
            "scores": scores,
            "finite": st.booleans(),
            "logged": named,
            "withheld": st.none() | st.text(min_size=1, max_size=40),
            "drawn": st.lists(noise, max_size=3),
        }
    ),
    tickets,
)
records = st.one_of(
    st.builds(
        lambda asked, facts, counted, config: wire.Hello(
            **asked, facts=facts, counts=counted, config=config
        ),
        questions,
        st.dictionaries(names, names, max_size=4),
        st.booleans(),
        st.none() | names,
    ),
    st.builds(
        lambda asked, told: wire.Introduction(**asked, **told),
        identities,
        st.fixed_dictionaries(
            {
                "data": hashes,
                "sizes": st.builds(wire.Sizes, sizes, sizes, sizes),
                "label_counts": st.none() | st.lists(sizes, max_size=5),
            }
        ),
    ),
    orders,
    st.builds(
        lambda order, work: wire.WorkOrder(**vars(order), work=wire.StepRecord.of(work)),
        orders,
        st.builds(Worked, st.integers(-(2**63), 2**63 - 1), names),
    ),
    reports,
    st.builds(
        lambda report, course: wire.WorkReport(**vars(report), course=[*map(plain, course)]),
        reports,
        st.lists(scores, max_size=3),
    ),
    st.builds(lambda asked, told: wire.Marks(**asked, scores=plain(told)), identities, scores),
    st.builds(
        lambda asked, kind, message: wire.Failure(**asked, kind=kind, message=message),
        identities,
        st.sampled_from(["lost", "refused", "failed"]),
        names,
    ),
    st.builds(wire.Unread, names),
    # What a goodbye says, and the answer to it.
    st.builds(lambda asked: wire.Question(**asked), questions),
    st.builds(lambda asked: wire.Answer(**asked), identities),
)
TYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]


@st.composite
def tensors(draw):
    """Return a tensor of any type, with any values, in any place of a larger one."""
    shape = draw(st.lists(st.sampled_from([0, 1, 1, 2, 3]), max_size=5))
    kind = draw(st.sampled_from(TYPES))
    octets = torch.randint(256, (8 * max(1, math.prod(shape)),), dtype=torch.uint8)
    whole = octets % 2 == 1 if kind is torch.bool else octets.view(kind)
    value = whole[: math.prod(shape)].reshape(shape)
    value = value.permute(draw(st.permutations(range(value.dim()))))
    if value.dim() and draw(st.booleans()):
        axis = draw(st.integers(0, value.dim() - 1))
        value = value.narrow(axis, 0, min(value.shape[axis], draw(st.integers(0, 2))))
    return value


def bits(value):
    return value.dtype, value.shape, container.octets(value).tolist()


states = st.dictionaries(names, tensors(), max_size=3)
sent = st.none() | st.builds(Broadcast, states, states) | st.builds(Upload, counts, sizes, states)


def check_written(record, message, kept):
    written = wire.written("verb", record, message, kept)
    found, received = wire.read({"verb": type(record)}, written)
    # Tuples are read as lists.
    plain_values = [json.dumps(asdict(one), sort_keys=True) for one in (found, record)]
    assert plain_values[0] == plain_values[1]
    assert written == wire.written("verb", found, message, kept)
    parts = {"kept": kept}
    if message is not None:
        parts |= {"shared": message.shared, "extra": message.extra}
    for part, state in parts.items():
        values = getattr(received, part)
        assert [*values] == [*state]
        assert all(bits(values[one]) == bits(state[one]) for one in state)


test_what_is_written_is_read = SOME(given(records, sent, states)(check_written))
test_what_is_written_is_read_in_many_draws = pytest.mark.long(
    MANY(given(records, sent, states)(check_written))
)


@SOME
@given(named)
def test_numbers_are_read_as_they_were_reported(values):
    """Those that nobody may report are infinite, and NaN stays NaN."""
    found = wire.Numbers.of(values).read()
    assert [*found] == [*values]
    for name, value in values.items():
        right = value if abs(value) <= MOST or math.isnan(value) else math.copysign(math.inf, value)
        assert found[name] == right or (math.isnan(right) and math.isnan(found[name]))


WRONG = {
    "run": ["", "0" * 31, "G" * 32, 3, None],
    "client": [-1, 2**63, 1.5, "0", True, None],
    "round": [-1, 10**9, 0.5, "1", None],
    "question": ["", "0" * 63, "x" * 64, None],
    "data": ["", 3, None],
    "rounds": [-1, 10**9, None],
    "seed": [-1, 2**63, 0.5],
    "splits": [["all"], ["test"] * 5, "test", None],
    "model": ["mine", None],
    "sent": [1, "yes", None],
    "op_threads": [0, 257, None],
    "codec": ["qsgd", {"name": "x" * 201, "values": {}}],
    "kept": [{"digest": "../../etc", "round": 1}, {"digest": "0" * 64, "round": -1}, {}],
    "steps": [-1, 10**9 + 1, 0.5, [{"name": "x", "values": {}}] * 17],
    "samples": [-1, 10**12 + 1, None],
    "finite": ["no", 0, None],
    "upload": [-1, 10**9 + 1, 0.5],
    "withheld": ["", 3, "x" * 201],
    "train": [None, {}, {"names": ["a"], "values": []}, {"names": ["a"] * 2, "values": [1, 2]}],
    "logged": [
        {"names": ["a"], "values": [1e101]},
        {"names": ["a"], "values": ["infinite"]},
        {"names": ["x" * 201], "values": [1]},
        {"names": [*map(str, range(2001))], "values": [0] * 2001},
    ],
    "scores": [{"all": {"names": [], "values": []}}, {"test": 1.0}, None],
    "sizes": [{"train": 1, "val": 0}, {"train": 10**9 + 1, "val": 0, "test": 0}, {}, None],
    "label_counts": [[-1], [10**9 + 1], ["1"], 3],
    "counts": [1, None],
    "facts": [{"a": 1}, None],
    "kind": ["asleep", None],
    "message": [3, None],
    "work": ["a.b", {"name": "x" * 201, "values": {}}, None],
    "course": [None, [{"all": {"names": [], "values": []}}], [{}] * (10**4 + 1)],
    "drawn": [[{"batches": 0, "steps": 1, "clip": 1.0, "sigma": 1.0}], [{}], None],
}


def check_refused(record, data):
    """By who would send it, and by who receives it."""
    content = asdict(record)
    field = data.draw(st.sampled_from([key for key in content if key in WRONG]))
    wrong = data.draw(st.sampled_from(WRONG[field]))
    changed = {**content, field: wrong}
    with pytest.raises(ContainerError):
        wire.read({"verb": type(record)}, container.pack({"verb": changed}, {}))
    with pytest.raises((ValidationError, ValueError)):
        type(record)(**{**vars(record), field: wrong})


test_what_is_out_of_range_is_refused = SOME(given(records.filter(fields), st.data())(check_refused))
test_what_is_out_of_range_is_refused_in_many_draws = pytest.mark.long(
    MANY(given(records.filter(fields), st.data())(check_refused))
)


def _under(kind):
    return [kind, *(one for child in kind.__subclasses__() for one in _under(child))]


def test_every_field_of_a_record_has_values_that_are_refused():
    kinds = {*_under(wire.Question), *_under(wire.Answer)}
    assert {wire.Hello, wire.WorkOrder, wire.Introduction, wire.WorkReport, wire.Failure} < kinds
    known = {field.name for kind in kinds for field in fields(kind)}
    assert known - {"config"} == {*WRONG}


@SOME
@given(states, st.dictionaries(names, st.none() | names | st.booleans(), max_size=3))
def test_what_is_written_into_a_file_is_read_and_lies_in_memory_as_it_lay(state, content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.state")
        container.write(path, content, state, synced=False)
        found, values = container.read(path)
        assert (found, [*values]) == (content, [*state])
        for name, value in state.items():
            assert bits(values[name]) == bits(value)
            dense = torch.empty_like(value, device="meta").stride()
            axes = [axis for axis, length in enumerate(value.shape) if length > 1]
            if value.numel() > 1:
                assert [values[name].stride()[a] for a in axes] == [dense[a] for a in axes]
        # Equal content has equal bytes, wherever it lay.
        first = path.read_bytes()
        container.write(path, content, values, synced=False)
        assert path.read_bytes() == first
        del values


def test_a_step_whose_field_cannot_travel_is_told_before_it_is_sent():
    record = wire.StepRecord("x", {"f": {1, 2}})
    with pytest.raises((TypeError, ValueError)):
        wire.packed("train", record, {})


def test_who_writes_a_record_that_is_too_long_to_be_read_is_told():
    facts = {"a": "x" * 2**20}
    record = wire.Hello(run="0" * 32, client=0, round=0, facts=facts, counts=False)
    with pytest.raises(ValueError, match="its record has 1,0"):
        wire.written("hello", record)


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ({"a": "x" * (container.HEADER + 1)}, "a header of 16,777,216 bytes"),
        (json.loads("[" * 51 + "]" * 51), "more than 50 levels"),
    ],
)
def test_who_packs_what_nobody_would_read_is_told(message, what):
    with pytest.raises(ValueError, match=what):
        container.pack(message, {})


@pytest.mark.parametrize(
    ("value", "right"),
    [(1.8e19, True), (1.9e19, False), (-1e30, False), (math.inf, False), (math.nan, False)],
)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_numbers_that_travel_have_finite_squares_in_single_precision(value, right, kind):
    state = {"w": torch.tensor([1.0, value], dtype=kind), "n": torch.tensor(3)}
    assert moderate(state) is right
    assert each_sound([{}, {}], [state, {}]) == [right, True]


def test_many_moderate_numbers_may_have_a_large_sum():
    assert each_sound([{"v": torch.full((9,), 3e38)}], [{}]) == [True]
