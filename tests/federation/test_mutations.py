"""Whatever can change a run's numbers gives it another identity; what cannot leaves it."""

from __future__ import annotations

import copy
import sys
import warnings
from dataclasses import replace
from types import ModuleType

import pytest

from pfl.engines.sequential import SequentialEngine
from pfl.federation import identity
from pfl.federation.run import Callback
from pfl.imports import sources
from pfl.results.runs import RunFolder
from pfl.results.settings import group
from tests.federation.test_described import data, train  # noqa: F401 (a fixture)

# Modules of a user, and a package, by their files.
FILES = {
    "own_engine.py": "class Engine:\n    flips = ()\n",
    "own_callback.py": "class Callback:\n    def on_round_end(self, run, result): pass\n",
    "own_sampler.py": "import os\nSHARE = os.environ.get('SHARE', 1)\nclass Sampler: pass\n",
    "own_method.py": "from own_helper import step\nimport own_tools.inner\nclass Method: pass\n",
    "own_helper.py": "from own_deeper import rate\ndef step(): return rate\n",
    "own_deeper.py": "import os\nrate = float(os.getenv('RATE', 1))\n",
    "own_tools/__init__.py": "",
    "own_tools/inner.py": "size = 3\n",
    "own_metric.py": "class Metric: pass\n",
    "own_logger.py": "class Logger: pass\n",
    "own_task.py": "class Task: pass\n",
    "own_optimizer.py": "class Optimizer: pass\n",
    "plug_in/__init__.py": "from plug_in.nets.wide import Net\n",
    "plug_in/nets/__init__.py": "import os\nif os.environ['DEPTH']: pass\n",
    "plug_in/nets/wide.py": "class Net: pass\n",
    "namespace/data.py": "class Data: pass\n",
    "own_unused.py": "",
}
CONFIGURATION = {
    "seed": 1,
    "loop": {
        "rounds": 2,
        "engine": {"class_path": "own_engine.Engine", "init_args": {"clients": [1]}},
        "callbacks": [
            {"class_path": "pfl.callbacks.EarlyStopping", "init_args": {"patience": 3}},
            {"class_path": "own_callback.Callback", "init_args": {"strength": 1.0}},
        ],
        "sampler": {"class_path": "own_sampler.Sampler", "init_args": {"fraction": 0.5}},
        "loggers": [{"class_path": "own_logger.Logger"}],
        "precision": "32-true",
        "gradient_clip_val": None,
        "evaluate_every": 1,
        "on_nonfinite": "stop",
        "uplink": [{"class_path": "own_step.Step", "init_args": {"share": 0.1}}],
    },
    "model": {
        "class_path": "own_method.Method",
        "init_args": {
            "net": {"class_path": "plug_in.Net", "init_args": {"hidden": 7}},
            "optimizer": {"class_path": "own_optimizer.Optimizer", "init_args": {"lr": 0.1}},
            "task": {"class_path": "own_task.Task"},
            "epochs": 1,
            "sizes": [1, 2],
        },
    },
    "data": {
        "class_path": "namespace.data.Data",
        "init_args": {
            "num_clients": 3,
            "partition": {"class_path": "datamodules.Dirichlet", "init_args": {"alpha": 0.3}},
            "metrics": [{"class_path": "own_metric.Metric"}],
            "batch_size": 8,
            "split_seed": 1,
        },
    },
}
MODEL, DATA = "model/init_args", "data/init_args"
SETTINGS = {
    "seed": 2,
    "loop/rounds": 3,
    "loop/engine": "auto",
    "loop/engine/class_path": "own_engine.Other",
    "loop/engine/init_args/clients": [2],
    "loop/callbacks": None,
    "loop/callbacks/0/class_path": "pfl.callbacks.Fisher",
    "loop/callbacks/0/init_args/patience": 4,
    "loop/callbacks/1/class_path": "own_callback.WandB",
    "loop/callbacks/1/init_args/strength": 2.0,
    "loop/sampler/class_path": "pfl.federation.sampling.UniformSampler",
    "loop/sampler/init_args/fraction": 0.6,
    "loop/loggers": None,
    "loop/precision": "64-true",
    "loop/gradient_clip_val": 1.0,
    "loop/evaluate_every": 2,
    "loop/on_nonfinite": "skip",
    "loop/uplink": None,
    "loop/uplink/0/class_path": "own_step.Other",
    "loop/uplink/0/init_args/share": 0.2,
    f"{MODEL}/net/class_path": "plug_in.Other",
    f"{MODEL}/net/init_args/hidden": 8,
    f"{MODEL}/optimizer/init_args/lr": 0.2,
    f"{MODEL}/task/class_path": "own_task.Other",
    f"{MODEL}/epochs": 2,
    f"{DATA}/num_clients": 4,
    f"{DATA}/partition/class_path": "datamodules.IID",
    f"{DATA}/partition/init_args/alpha": 0.4,
    f"{DATA}/metrics/0/class_path": "own_metric.Other",
    f"{DATA}/batch_size": 16,
    f"{MODEL}/sizes": [2, 1],
    f"{MODEL}/none": [],
    f"{DATA}/split_seed": 2,
}
EDITED = [name for name in FILES if name != "own_unused.py"]
VARIABLES = [*sources.PRECISION, "SHARE", "RATE", "DEPTH"]
MUTATIONS = [*SETTINGS, *EDITED, *VARIABLES]
HARMLESS = {
    "loop/default_root_dir": "elsewhere",
    "loop/name": "x",
    "loop/accelerator": "gpu",
    "loop/devices": 2,
    "loop/workers": 3,
    "loop/kept_memory": 1.0,
    "loop/checkpoint_every": 5,
    "loop/progress": False,
    "loop/seed": 2,
    "loop/callbacks/2": {"class_path": "pfl.callbacks.WandB", "init_args": {"project": "x"}},
    "loop/loggers/1": {"class_path": "lightning.pytorch.loggers.CSVLogger"},
    f"{DATA}/root": "there",
    f"{DATA}/cache_dir": "cache",
    f"{DATA}/download": True,
    f"{DATA}/memory": 4.0,
    f"{DATA}/client": 0,
    f"{DATA}/metrics/1": "torchmetrics.AUROC",
    "own_unused.py": None,
    "HOME": None,
}


def with_setting(path, value):
    """The configuration with one value changed, or added."""
    place = config = copy.deepcopy(CONFIGURATION)
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("/"))
    for parent in parents:
        place = place[parent]
    if isinstance(place, list) and last == len(place):
        place.append(value)
    else:
        place[last] = value
    return config


@pytest.fixture(scope="module")
def digest(tmp_path_factory):
    """Return the digest of the run after a mutation, by the name of the mutation."""
    folder = tmp_path_factory.mktemp("own")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    def of(name, value=None):
        config = CONFIGURATION
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(folder)
            patch.setenv("DEPTH", "1")
            if name in FILES:
                (folder / name).write_text(FILES[name] + "\nchanged = True\n")
            elif "/" in name or name in CONFIGURATION:
                config = with_setting(name, value)
            elif name:
                patch.setenv(name, "2")
            found = identity.of_run(config, identity.beside(config, None))
            if name in FILES:
                (folder / name).write_text(FILES[name])
        return identity.digest(found)

    yield of
    for name in [name for name in sys.modules if name.startswith(("own_", "plug_in", "namespace"))]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def digests(digest):
    return {name: digest(name, SETTINGS.get(name)) for name in ("", *MUTATIONS)}


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_can_change_numbers_makes_another_run(digests, name):
    same = [other for other, found in digests.items() if found == digests[name]]
    assert same == [name]


@pytest.mark.parametrize("name", HARMLESS)
def test_what_changes_no_number_leaves_the_run(digest, digests, name):
    assert digest(name, HARMLESS[name]) == digests[""]


THREADS = {"class_path": "pfl.engines.threads.ThreadsEngine", "init_args": {"workers": 2}}


@pytest.mark.parametrize("engine", ["auto", THREADS])
def test_engines_of_the_project_leave_the_run(digest, digests, engine):
    assert digest("loop/engine", engine) == digests["loop/engine"]


# What a run records.


class Flips(SequentialEngine):
    """Turns the upload of one client round."""

    def train(self, jobs):
        for result in super().train(jobs):
            if result.client == 1:
                shared = {name: -value for name, value in result.upload.shared.items()}
                result = replace(result, upload=replace(result.upload, shared=shared))
            yield result


class Writes(Callback):
    """Writes into the run."""

    def on_round_end(self, run, result):
        for value in run.server.shared.values():
            value.zero_()


def settings(*runs):
    found, _ = group([RunFolder.read(run.folder) for run in runs])
    return [setting.label for setting in found]


def test_engines_and_callbacks_of_ones_own_are_other_settings(tmp_path, data):  # noqa: F811
    clean = train(tmp_path, data)
    assert RunFolder.read(clean.folder).environment["sources"] == {}
    poisoned = train(tmp_path, data, loop={"engine": Flips()})
    assert poisoned.fingerprint != clean.fingerprint
    written = train(tmp_path, data, loop={"callbacks": [Writes()]})
    first, second, _ = settings(clean, poisoned, written)
    assert first.startswith("FedPer")
    assert "engine=Flips" in second


def test_a_function_without_a_file_counts_by_its_lines(monkeypatch):
    """As in a notebook, whose cells are in no file."""
    found = set()
    for rate in (1, 2):
        module = ModuleType("__main__")
        exec(f"class Mine:\n    rate = {rate}\n", vars(module))
        monkeypatch.setitem(sys.modules, "__main__", module)
        found.add(sources.recorded(["__main__.Mine"])["__main__"])
    assert len(found) == 2


def test_a_text_that_names_a_loaded_class_counts():
    config = {"data": {"metrics": ["tests.federation.test_mutations.Flips", "data.csv"]}}
    assert [*identity.beside(config, None)["sources"]] == ["tests"]


def test_a_run_that_is_resumed_with_another_source_counts_as_neither(tmp_path, data, monkeypatch):  # noqa: F811
    def hashed(text):
        monkeypatch.setattr(sources, "recorded", lambda paths: {"mine": text})

    hashed("a")
    run = train(tmp_path, data)
    kept = RunFolder.read(run.folder).environment["sources"]
    assert kept == {"mine": "a"}
    for text, mixed, warned in (("b", "a+b", True), ("b", "a+b", False), ("c", "a+b+c", True)):
        hashed(text)
        options = {"ckpt_path": str(run.folder), "loop": {"rounds": run.round + 1}}
        with warnings.catch_warnings(record=True) as caught:
            run = train(tmp_path, data, **options)
        assert RunFolder.read(run.folder).environment["sources"] == {"mine": mixed}
        said = [str(one.message) for one in caught]
        assert (
            any("mine: the source, value or version has changed" in one for one in said) == warned
        )
