"""On a simulated second device: servers, analyses, tables, and what is done with a checkpoint."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from datamodules import IID, TensorData
from lightning_modules.apple import APPLE
from lightning_modules.fedas import FedAS
from lightning_modules.fedavg import FedAvg
from lightning_modules.fedfomo import FedFomo
from lightning_modules.fedper import FedPer
from lightning_modules.fedsimsup import AbsentRule, FedSimSup
from pfl.core import export
from pfl.core.state import named
from pfl.core.task import Regression
from pfl.engines.vectorised import VectorisedEngine
from pfl.federation.sampling import UniformSampler
from pfl.loop import FederatedLoop
from pfl.results.files import read_table
from pfl.testing.compare import distance
from tests.engines.agreement import agree, on_host
from tests.helpers.device import NAME, simulated
from tests.helpers.extras import needs
from tests.helpers.federation import SGD
from tests.helpers.toy import blobs, mlp

pytestmark = pytest.mark.long

ENGINES = ["sequential", "vectorised"]
HOST = "cpu"


def loop(accelerator, engine="sequential", rounds=2, **options):
    usual = {"precision": "64-true", "progress": False}
    return FederatedLoop(rounds, engine=engine, accelerator=accelerator, **usual | options)


@pytest.mark.parametrize("rule", get_args(AbsentRule))
def test_supervisors_of_several_sizes_and_absent_clients(rule):
    """Clients with supervisors of two sizes; each rule for the server's copies of absent ones."""

    def go(accelerator):
        kinds = [mlp(hidden=2), mlp(hidden=3)]
        module = FedSimSup(mlp(), kinds, optimizer=SGD, absent_rule=rule)
        return loop(accelerator, sampler=UniformSampler(0.7)).fit(module, blobs((5, 4, 6)))

    expected = go(HOST)
    with simulated():
        agree(go(NAME), expected)


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize(
    ("method", "options"),
    [(FedFomo, {"candidates": 2}), (APPLE, {"num_clients": 8, "downloads": 2})],
)
def test_what_decides_on_the_messages_of_a_round_leaves_the_device_in_one_copy(
    method, options, count
):
    """The host would wait for each number that it reads, of which there is one for each pair."""
    with simulated() as device:
        run = loop(NAME).fit(method(mlp(), optimizer=SGD, **options), blobs((4,) * count))
        server = run.module.server()
        device.reset()
        server.broadcasts(run.server, range(count), 3)
        assert device.reads.total() == 1


@needs("codecs")
@pytest.mark.parametrize("up", ["qsgd", "topk"])
def test_messages_of_a_server_whose_models_lie_in_files_are_encoded(up):
    from pfl.extras.codecs import Codecs

    def go(accelerator):
        options = {"uplink": [Codecs(up, "cast")], "kept_memory": 0.0}
        made = loop(accelerator, sampler=UniformSampler(0.7), **options)
        return made.fit(FedSimSup(mlp(), mlp(), optimizer=SGD), blobs((5, 4, 6)))

    expected = go(HOST)
    with simulated():
        agree(go(NAME), expected)


@pytest.mark.parametrize("engine", ENGINES)
@needs("papers")
def test_analyses_see_models_on_the_device(engine, tmp_path):
    from pfl.extras.papers.fisher import FisherTraces, ReplacedParameters
    from pfl.extras.papers.spectrum import ClassifierSpectrum

    def go(accelerator):
        analyses = [FisherTraces(), ReplacedParameters([0.5], draws=2), ClassifierSpectrum()]
        folder = str(tmp_path / accelerator)
        made = loop(accelerator, engine, callbacks=analyses, default_root_dir=folder)
        return made.fit(FedAS(mlp(), optimizer=SGD), blobs())

    expected = go(HOST)
    with simulated():
        found = go(NAME)
        agree(found, expected)
    same_rows(found, expected, "fisher.csv", "replaced.csv", "spectrum.csv")


def same_rows(found, expected, *files):
    for file in files:
        rows, wanted = (read_table(run.folder / file) for run in (found, expected))
        assert len(rows)
        pd.testing.assert_frame_equal(rows, wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("written", [HOST, NAME])
def test_a_checkpoint_is_tested_validated_predicted_from_and_exported(written, engine, tmp_path):
    """By either device, from the same file."""

    def module():
        return FedPer(mlp(), optimizer=SGD)

    with simulated():
        run = loop(written, engine, default_root_dir=str(tmp_path)).fit(module(), blobs())
    path = str(run.folder)

    def used(accelerator):
        made = loop(accelerator, engine)
        scores = made.test(module(), blobs(), path)
        predicted = list(made.predict(module(), blobs(), path))
        file = tmp_path / f"{accelerator}.ckpt"
        left = module()
        made.export(left, blobs(), path, 1, file)
        assert {value.device.type for value in left.state_dict().values()} == {HOST}
        read = FedPer.load_from_checkpoint(file, net=mlp(), optimizer=SGD)
        assert {name.split("/")[0] for name in scores} == {"test", "val"}
        return scores, predicted, read.state_dict()

    expected = used(HOST)
    with simulated():
        found = used(NAME)
    assert {value.device.type for value in named(found).values()} == {HOST}
    assert distance(named(found), named(expected)) < (1e-6, "")


@pytest.mark.parametrize("memory", [None, 1.0])
def test_what_clients_keep_is_where_it_was_after_a_resume(memory, tmp_path):
    """On the device, or in bounded memory of the host; the run has no rounds left."""

    def kept(**options):
        made = loop(NAME, default_root_dir=str(tmp_path), kept_memory=memory)
        run = made.fit(FedPer(mlp(), optimizer=SGD), blobs(), **options)
        return {value.device.type for state in run.kept.values() for value in state.values()}

    with simulated():
        assert kept() == kept(ckpt_path="last") == {NAME if memory is None else HOST}


def test_a_model_is_written_from_its_device_and_stays_there(tmp_path):
    """A site goes on training with it."""
    with simulated():
        module = FedPer(mlp(), optimizer=SGD).to(NAME)
        export.write(tmp_path / "model.ckpt", module, {})
        assert {value.device.type for value in module.state_dict().values()} == {NAME}
    read = FedPer.load_from_checkpoint(tmp_path / "model.ckpt", net=mlp(), optimizer=SGD)
    assert {value.device.type for value in read.state_dict().values()} == {HOST}


class Pair(nn.Module):
    """Two inputs, by name, to one linear layer."""

    def __init__(self):
        super().__init__()
        self.own = mlp(2, dim=3)

    def forward(self, x):
        return self.own(torch.cat([x["left"], x["right"]], 1))


def pairs(tmp_path):
    """Return inputs that are dictionaries of tensors."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(24, 3)).astype(np.float32)
    file = tmp_path / "pairs.npz"
    np.savez(file, **{"x.left": values[:, :2], "x.right": values[:, 2:], "y": np.arange(24) % 2})
    return TensorData(str(file), 3, IID(), batch_size=4)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("memory", [2**33, 2**9], ids=["held", "left"])
def test_dictionaries_of_inputs(memory, engine, tmp_path):
    """Held by the device, or left with the host as they do not fit."""

    def go(accelerator):
        chosen = VectorisedEngine(clients=3) if engine == "vectorised" else engine
        return loop(accelerator, chosen).fit(FedAvg(Pair(), optimizer=SGD), pairs(tmp_path))

    expected = go(HOST)
    with simulated() as device:
        device.memory = memory
        found = go(NAME)
        assert ("vectorised" in found.header["engine"]) == (engine == "vectorised")
        agree(found, expected)


def values(tmp_path):
    """Return regression on stored float64 inputs and targets."""
    rng = np.random.default_rng(0)
    file = tmp_path / "values.npz"
    np.savez(file, x=rng.normal(size=(24, 3)), y=rng.normal(size=(24, 1)))
    return TensorData(str(file), 3, IID(), batch_size=4)


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
@needs("papers")
def test_a_device_without_float64(engine, tmp_path):
    """Data of float64, sums of a server, singular values; clients one after another."""
    from pfl.extras.papers.spectrum import ClassifierSpectrum

    def go(accelerator):
        made = loop(
            accelerator,
            engine,
            precision="32-true",
            callbacks=[ClassifierSpectrum()],
            default_root_dir=str(tmp_path / accelerator),
        )
        module = FedAvg(mlp(1, dim=3), optimizer=SGD, task=Regression())
        return made.fit(module, values(tmp_path))

    expected = go(HOST)
    with simulated(float64=False):
        found = go(NAME)
    assert found.header["engine"].startswith(("sequential", "auto: sequential"))
    assert distance(on_host(found.server), on_host(expected.server)) < (1e-6, "")
    rows, wanted = (read_table(run.folder / "spectrum.csv") for run in (found, expected))
    pd.testing.assert_frame_equal(rows, wanted, rtol=1e-5)


@needs("privacy")
def test_private_samples_need_float64_where_the_method_is_checked(monkeypatch):
    """A site's device, whose server has done that, needs none."""
    from pfl.extras.privacy import separable
    from pfl.extras.privacy.privacy import Privacy

    def go(accelerator):
        privacy = Privacy(1.0, 0.0, 1e-2, level="sample")
        made = loop(accelerator, precision="32-true", uplink=[privacy])
        return made.fit(FedAvg(mlp(), optimizer=SGD), blobs())

    expected = go(HOST)
    with simulated(float64=False):
        with pytest.raises(ValueError, match=f"{NAME} has no float64"):
            go(NAME)
        monkeypatch.setattr(separable, "unsupported_reason", lambda *_: None)
        found = go(NAME)
    assert distance(on_host(found.server), on_host(expected.server)) < (1e-6, "")
