"""Networks that differ between clients, named in a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from lightning_modules.fedproto import FedProto
from pfl.__main__ import main
from pfl.cli.config import Experiment
from pfl.federation import checkpoint
from pfl.training.contexts import Contexts
from tests.helpers.messages import says

SMALL, DEEP = ({"class_path": "MLP", "init_args": {"hidden": hidden}} for hidden in (8, [9, 8]))
FIT = ["--config", "c.yaml"]


def config(*nets, by="cycle"):
    """Return a configuration of six clients with these networks."""
    split = {"class_path": "Dirichlet", "init_args": {"alpha": 1.0}}
    net = {"class_path": "PerClient", "init_args": {"by": by, "nets": [*nets]}}
    data = {"num_clients": 6, "max_samples": 200, "partition": split}
    return yaml.safe_dump(
        {
            "seed": 1,
            "loop": {"rounds": 1, "progress": False},
            "model": {"class_path": "FedProto", "init_args": {"net": net}},
            "data": {"class_path": "Digits", "init_args": data},
        }
    )


CONFIG = config(SMALL, DEEP)


def initial(text):
    Path("c.yaml").write_text(text)
    study = Experiment.parse("fit", FIT)
    return Contexts(study.module, study.data, study.loop.fabric).initial_values


def test_initial_values_follow_from_the_network_and_the_seed_alone(own_folder):
    """Whatever stands before it in the list; two of one kind begin alike."""
    one, other = initial(config(SMALL, DEEP)), initial(config(DEEP, SMALL))
    for name, value in one.items():
        if name.startswith("net."):
            assert torch.equal(value, other[f"1:{name}"])
    both = initial(config(SMALL, SMALL))
    assert torch.equal(both["net.head.weight"], both["1:net.head.weight"])


@pytest.mark.parametrize(("client", "layers"), [(2, 2), (3, 3)])
def test_a_client_is_exported_with_its_own_network(client, layers, run):
    assert main(["export", *FIT, "--ckpt_path=last", f"--client={client}", "out.ckpt"]) == 0
    module = FedProto.load_from_checkpoint("out.ckpt")
    linears = [child for child in module.modules() if isinstance(child, torch.nn.Linear)]
    assert (type(module.net).__name__, len(linears)) == ("MLP", layers)
    kept = checkpoint.load(run / "checkpoints" / "last.ckpt")["kept"][client]
    assert all(torch.equal(module.state_dict()[name], value) for name, value in kept.items())


def test_the_list_counts_for_a_resume(run, capsys):
    """Other networks, or others' turns, are another run."""
    Path("c.yaml").write_text(config(SMALL, DEEP, by=[0, 1, 0, 1, 1, 0]))
    assert main(["fit", *FIT, "--ckpt_path", str(run)]) == 2
    assert says(capsys.readouterr().err, "model.net.by")


def test_an_argument_of_a_listed_network_that_is_not_there_is_named(own_folder, capsys):
    Path("c.yaml").write_text(config(SMALL, {"class_path": "CNN2", "init_args": {"hidden": 8}}))
    assert main(["fit", *FIT]) == 2
    assert says(capsys.readouterr().err, "CNN2 has no argument 'hidden'")
