"""Interrupted runs: a round counts wholly, with its tests and row, or not at all."""

from __future__ import annotations

import csv
import json
import sys

import pytest

from lightning_modules.fedper import FedPer
from lightning_modules.fedrep import FedRep
from pfl.callbacks.early_stopping import EarlyStopping
from pfl.engines import op_threads
from pfl.engines.sequential import SequentialEngine
from pfl.federation import checkpoint
from pfl.federation.run import Callback
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from tests.helpers.analyses import Norms
from tests.helpers.toy import blobs, mlp


class EndsInTests(SequentialEngine):
    def test(self, jobs):
        for number, scores in enumerate(super().test(jobs)):
            if jobs[0].info.round == 3 and number == 1:
                raise KeyboardInterrupt
            yield scores


class EndsInTraining(SequentialEngine):
    def train(self, jobs):
        for number, result in enumerate(super().train(jobs)):
            if jobs[0].info.round == 3 and number == 1:
                raise KeyboardInterrupt
            yield result


class EndsInACallback(Callback):
    last = 3

    def on_round_end(self, run, result):
        if result.round == self.last:
            raise KeyboardInterrupt


def fit(folder, engine="auto", callbacks=(), ckpt_path=None, module=None, rounds=5):
    loop = FederatedLoop(
        rounds=rounds,
        sampler=UniformSampler(0.7),
        engine=engine,
        callbacks=list(callbacks),
        default_root_dir=str(folder),
        progress=False,
    )
    return loop.fit(module or FedPer(mlp()), blobs(), ckpt_path=ckpt_path)


def table(path):
    """All columns of a table but the times."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.mark.parametrize(
    ("engine", "callbacks"),
    [(EndsInTests(), ()), (EndsInTraining(), ()), ("auto", [EndsInACallback()])],
    ids=["tests", "training", "callbacks"],
)
def test_an_interrupted_round_leaves_no_trace(engine, callbacks, tmp_path):
    whole = fit(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "ended", engine, callbacks)
    resumed = fit(tmp_path / "ended", ckpt_path="last")
    assert resumed.fingerprint == whole.fingerprint
    for name in ("metrics.csv", "clients.csv"):
        assert table(resumed.folder / name) == table(whole.folder / name)
    assert resumed.history[-1]["comm/bytes_total"] == whole.history[-1]["comm/bytes_total"]


class EndsWithin(Norms):
    """Is interrupted between the rows of the second round, but not when it writes them again."""

    ends = True

    def rows(self, run, result):
        for number, row in enumerate(super().rows(run, result)):
            if self.ends and (result.round, number) == (2, 1):
                self.ends = False
                raise KeyboardInterrupt
            yield row


class EndsItsTurn(EndsInACallback):
    last = 2


def stops(*callbacks):
    """Callbacks that end a run of five rounds after three, and those that come before them."""
    return [*callbacks, EarlyStopping("round", patience=2, mode="min")]


@pytest.mark.parametrize(
    "callbacks",
    [(EndsItsTurn(), Norms()), (EndsWithin(),), (Norms(), EndsItsTurn())],
    ids=["before others", "in an analysis", "after one"],
)
def test_a_round_that_is_entered_reaches_every_callback(callbacks, tmp_path):
    """Also those whose turn it was not yet: a resume begins with the next round."""
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, callbacks=stops(*callbacks))
    resumed = fit(tmp_path, callbacks=stops(*callbacks), ckpt_path="last")
    whole = fit(tmp_path / "whole", callbacks=stops(Norms()))
    assert resumed.round == whole.round == 3
    for name in ("norms.csv", "metrics.csv", "clients.csv"):
        assert table(resumed.folder / name) == table(whole.folder / name)


def test_a_loop_that_is_left_early_is_saved_as_the_run_computes(tmp_path):
    """With its own number of op threads, though the loop's body has another one."""

    def federation():
        return FederatedLoop(3, callbacks=[Norms()], default_root_dir=str(tmp_path))

    with op_threads.using(2):
        rounds = federation().rounds_of(FedPer(mlp()), blobs())
        run, _ = next(rounds)
    rounds.close()
    assert checkpoint.load(run.folder / "checkpoints" / "last.ckpt")["op_threads"] == 2
    federation().fit(FedPer(mlp()), blobs(), ckpt_path="last")
    numbers = [row["round"] for row in table(run.folder / "norms.csv")]
    assert sorted(set(numbers)) == ["1", "2", "3"]


class EndsInItsHead(FedRep):
    """Is interrupted in the second round's first step, in a phase that trains the head alone."""

    ends = False

    def supervised(self, outputs, batch):
        if self.ends:
            self.ends = False
            raise KeyboardInterrupt
        return super().supervised(outputs, batch)


class EndsOnce(Callback):
    def on_round_end(self, run, result):
        run.module.ends = result.round == 1


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_the_same_module_goes_on_after_an_interruption_within_a_phase(engine, tmp_path):
    """Its parameters require gradients as before: the next run trains all of them again."""
    module = EndsInItsHead(mlp())
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, engine, [EndsOnce()], module=module)
    assert all(parameter.requires_grad for parameter in module.parameters())
    resumed = fit(tmp_path, engine, ckpt_path="last", module=module)
    assert resumed.fingerprint == fit(tmp_path / "whole", engine, module=FedRep(mlp())).fingerprint


class EndsAtTheEnd(Callback):
    def on_fit_end(self, run):
        raise KeyboardInterrupt


class CannotClose(EndsInACallback):
    def on_interrupt(self, run):
        raise RuntimeError("network gone")


class Closes(Callback):
    """Counts how often it was closed."""

    ends = interruptions = 0

    def on_fit_end(self, run):
        self.ends += 1

    def on_interrupt(self, run):
        self.interruptions += 1


def test_an_interruption_at_the_end_loses_nothing(tmp_path):
    """Those that have ended are not interrupted too."""
    callbacks = [Closes(), EndsAtTheEnd(), Closes()]
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, callbacks=callbacks)
    assert [(one.ends, one.interruptions) for one in callbacks[::2]] == [(1, 0), (0, 1)]
    assert rounds_in(next(tmp_path.glob("*/2*")))["checkpoint"] == [1, 2, 3, 4, 5]


def test_a_summary_tells_of_no_run_that_goes_on(tmp_path):
    """A finished run to which rounds were added has none until they are finished."""

    class Ends(Callback):
        def on_round_end(self, run, result):
            raise KeyboardInterrupt

    file = fit(tmp_path).folder / "summary.json"
    assert json.loads(file.read_text())["rounds"] == 5
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, callbacks=[Ends()], ckpt_path="last", rounds=7)
    assert not file.exists()
    fit(tmp_path, ckpt_path="last", rounds=7)
    assert json.loads(file.read_text())["rounds"] == 7


def test_callbacks_that_had_begun_are_closed_if_a_later_one_cannot_begin(tmp_path):
    """As W&B, which would otherwise show a run that goes on; later ones have nothing to close."""

    class CannotBegin(Closes):
        def on_fit_start(self, run):
            raise OSError("no address")

    callbacks = [Closes(), CannotBegin(), Closes()]
    with pytest.raises(OSError, match="no address"):
        fit(tmp_path, callbacks=callbacks)
    assert [one.interruptions for one in callbacks] == [1, 0, 0]


def test_the_last_round_is_saved_before_any_callback_closes(tmp_path):
    """So a process that is killed meanwhile loses no round, and no summary tells of a lost one."""

    class Looks(Callback):
        def on_fit_end(self, run):
            assert rounds_in(run.folder)["checkpoint"] == [1, 2, 3, 4, 5]

    fit(tmp_path, callbacks=[Looks()])


def test_a_callback_that_cannot_close_hinders_no_other_and_hides_no_error(tmp_path):
    after = Closes()
    with (
        pytest.warns(UserWarning, match="CannotClose.*network gone"),
        pytest.raises(KeyboardInterrupt),
    ):
        fit(tmp_path, callbacks=[CannotClose(), after])
    assert after.interruptions == 1
    assert rounds_in(next(tmp_path.glob("*/2*")))["checkpoint"] == [1, 2, 3]


def test_a_run_is_saved_before_others_close(tmp_path):
    """They may wait for a network until the process is killed."""

    class Looks(EndsInACallback):
        def on_interrupt(self, run):
            seen.extend(rounds_in(run.folder)["checkpoint"])

    seen = []
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, callbacks=[Looks()])
    assert seen == [1, 2, 3]


# Between any two lines of what keeps a round.

KEEPERS = ("federation/rounds.py", "callbacks/records.py", "callbacks/checkpoint.py")
KEEPERS += ("disk/container.py", "federation/checkpoint.py", "/loop.py")
KEEPERS += ("callbacks/analysis.py", "callbacks/row_file.py", "disk/writing.py")
# Compute alone: an interruption within is one at the line that calls them.
PURE = ("_plain", "_placed", "_head", "<dictcomp>", "<listcomp>", "<lambda>")


class Signal:
    """Raises an interruption before some line of the modules that keep rounds is executed."""

    def __init__(self, at):
        self.left = at
        self.armed = False

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.enter)

    def __exit__(self, *error):
        sys.settrace(self.before)

    def enter(self, frame, event, argument):
        code = frame.f_code
        keeps = code.co_filename.endswith(KEEPERS) and code.co_name not in PURE
        return self.step if keeps else None

    def step(self, frame, event, argument):
        # From the training of the second round on, and once.
        self.armed = self.armed or (frame.f_code.co_name == "_train" and frame.f_lineno > 0)
        if self.armed and event == "line" and self.left >= 0:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        return self.step


def rounds_in(folder):
    """The rounds of which each file of a run knows."""
    found = {
        name: sorted({int(row["round"]) for row in table(folder / name)})
        for name in ("metrics.csv", "clients.csv", "norms.csv")
        if (folder / name).exists()
    }
    file = folder / "checkpoints" / "last.ckpt"
    content = checkpoint.load(file) if file.exists() else {"round": 0, "history": []}
    found["checkpoint"] = list(range(1, content["round"] + 1))
    found["history"] = [row["round"] for row in content["history"]]
    return found


@pytest.mark.long
@pytest.mark.parametrize("every", [1, 10])
def test_wherever_a_signal_comes_all_files_agree_and_nothing_is_lost(every, tmp_path):
    """Runs stop at every 29th line of a round and are resumed: some fifteen seconds."""

    def short(name, ckpt_path=None):
        loop = FederatedLoop(
            rounds=2,
            engine="sequential",
            callbacks=[Norms()],
            default_root_dir=str(tmp_path / name),
            checkpoint_every=every,
            progress=False,
        )
        return loop.fit(FedPer(mlp()), blobs(), ckpt_path=ckpt_path)

    whole = short("whole")
    for at in range(3, 3000, 29):
        name = str(at)
        try:
            with Signal(at):
                short(name)
        except KeyboardInterrupt:
            pass
        else:
            break
        (folder,) = (tmp_path / name).glob("*/2*")
        known = rounds_in(folder)
        if not known["checkpoint"]:
            continue
        assert len({str(rounds) for rounds in known.values()}) == 1, (at, known)
        resumed = short(name, str(folder))
        assert resumed.fingerprint == whole.fingerprint, at
        for file in ("metrics.csv", "clients.csv", "norms.csv"):
            assert table(folder / file) == table(whole.folder / file), at
    else:
        pytest.fail("the run has more lines than were tried")
    assert at > 100
