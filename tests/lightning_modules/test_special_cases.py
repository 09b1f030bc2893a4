"""Methods that are another method under some options, in whole runs with absent clients.

All that the other method's server and clients have must be there, bit for bit, and so must be the
named columns of the last round.
"""

from __future__ import annotations

from functools import partial

import pytest
from torch import nn

from lightning_modules import (
    APFL,
    CFL,
    FML,
    IFCA,
    LPFT,
    MOON,
    MRMTL,
    PFAKD,
    SCAFFOLD,
    CD2PFed,
    Ditto,
    FedALA,
    FedAMP,
    FedAS,
    FedASVariant,
    FedAvg,
    FedAvgP,
    FedBABU,
    FedBN,
    FedEM,
    FedPer,
    FedPHP,
    FedProto,
    FedProx,
    FedProxP,
    FedRep,
    FedROD,
    FedTGP,
    Freeze,
    KNNPer,
    LGFedAvg,
    Local,
    UniVarFL,
)
from pfl.federation.sampling import UniformSampler
from tests.helpers.federation import HEAVY, SGD, close, equal, fit
from tests.helpers.toy import blobs, mlp, normed

GLOBAL, PERSONAL, BYTES = "test/global/loss", "test/personal/loss", "comm/bytes_total"
SMALL, TWO, EVERYBODY = (mlp,), {"epochs": 2}, UniformSampler(1.0)
# Of CD2-pFed: no distillation, no averaging over time, and private channels from the start.
PLAIN = {"distillation": 0.0, "average_max": 1.0, "average_ramp": 0.0, "ramp_rounds": 0}
STILL = {"mix_lr": 0.0, "window": 2, "max_init_epochs": 3}
SERIAL = {"align_manner": "serial", "align_object": "own"}


def agree(
    ours,
    theirs,
    *columns,
    both=None,
    renamed="net.",
    nets=(mlp, normed),
    batch_size=4,
    same=equal,
    rounds=3,
    sampler=None,
    **loop,
):
    """Check that two methods agree.

    Args:
        ours: A method, as a class and its options.
        theirs: What it is then, likewise.
        columns: What agrees of the last round's row.
        both: Options of both methods.
        renamed: The prefix of our entries for their ``net.``.
        nets: The networks.
        batch_size: 99 for full batches, as the order of batches follows the name of a phase.
        same: Compares two states.
        rounds: Number of rounds.
        sampler: The sampler; by default two of three clients take part.
        loop: Further options of the loop.
    """
    for net in nets:
        run, other = (
            fit(
                method(net(), **{"optimizer": HEAVY, **(both or {}), **options}),
                blobs(batch_size=batch_size),
                rounds,
                sampler=sampler or UniformSampler(0.7),
                **loop,
            )
            for method, options in (ours, theirs)
        )
        assert other.kept.keys() == run.kept.keys()
        pairs = [(run.kept[client], kept) for client, kept in other.kept.items()]
        if other.server.shared:
            pairs.append((run.server.shared, other.server.shared))
        for state, expected in pairs:
            # Counters of batch norms are no numbers of the model.
            names = [name for name in expected if not name.endswith("num_batches_tracked")]
            found = {name: state[name.replace("net.", renamed, 1)] for name in names}
            assert same(found, {name: expected[name] for name in names})
        for column in columns:
            assert run.history[-1][column] == other.history[-1][column], column


def moon_net(net, **options):
    """Return FedAvg on MOON's network with its projector."""
    return FedAvg(MOON(net, out_dim=4).net, **options)


AVG, LOCAL = (FedAvg, {}), (Local, {})
CASES = {
    "apfl-0": partial(agree, (APFL, {"alpha": 0.0}), AVG, GLOBAL, "train/local/ce"),
    "apfl-step": partial(agree, (APFL, {"alpha": 0.25, "alpha_update": "step"}), AVG, GLOBAL),
    "apfl-plain": partial(agree, (APFL, {"alpha": 1.0, "v_grad": "plain"}), AVG, GLOBAL),
    "apfl-1": partial(
        agree,
        (APFL, {"alpha": 1, "alpha_update": "never"}),
        LOCAL,
        PERSONAL,
        renamed="personal.",
        both=TWO,
    ),
    "cd2-shared": partial(agree, (CD2PFed, {"private_share": 0.0, **PLAIN}), AVG, both=TWO),
    "cd2-private": partial(
        agree,
        (CD2PFed, {"private_share": 1.0, **PLAIN}),
        LOCAL,
        BYTES,
        renamed="own.module.",
        both=TWO,
    ),
    "cfl": partial(
        agree, (CFL, {"eps1": 0.0}), (FedAvg, {"weighting": "uniform"}), PERSONAL, both=TWO
    ),
    "ditto-0": partial(agree, (Ditto, {"proximity": 0}), AVG, GLOBAL),
    "ditto-2": partial(agree, (Ditto, {"proximity": 2, "personal_epochs": 3}), AVG, GLOBAL),
    "ditto-local": partial(
        agree,
        (Ditto, {"proximity": 0}),
        LOCAL,
        renamed="personal.",
        both=TWO,
        nets=SMALL,
        batch_size=99,
        same=close,
    ),
    "fedala-1": partial(agree, (FedALA, {"top": 1, **STILL}), AVG, both=TWO),
    "fedala-all": partial(agree, (FedALA, {"top": "all", **STILL}), AVG, both=TWO),
    "fedamp": partial(agree, (FedAMP, {"proximity": 0}), LOCAL, both=TWO),
    "fedas": partial(
        agree,
        (FedAS, {"alignment": False, "synchronisation": False}),
        (FedPer, {"buffers": "local"}),
        "train/local/ce",
        BYTES,
        both=TWO,
    ),
    "fedas-serial-own": partial(agree, (FedASVariant, SERIAL), (FedAS, {}), PERSONAL),
    "fedas-own": partial(
        agree,
        (FedASVariant, {"align_object": "own", "align_weight": 0.0}),
        (FedAS, {"alignment": False}),
    ),
    "fedas-global": partial(
        agree, (FedASVariant, {"align_weight": 0.0}), (FedAS, {"alignment": False})
    ),
    "fedavg-p": partial(agree, (FedAvgP, {"ft_epochs": 0}), AVG, GLOBAL, PERSONAL),
    "fedavg-p-tuned": partial(agree, (FedAvgP, {"ft_epochs": 4}), AVG, GLOBAL, BYTES),
    "fedavg-p-participants": partial(
        agree, (FedAvgP, {"p_mode": "participants_only"}), AVG, PERSONAL, evaluate_at=["post_local"]
    ),
    "fedbabu": partial(agree, (FedBABU, {}), (Freeze, {}), GLOBAL),
    "fedbabu-untuned": partial(agree, (FedBABU, {"ft_epochs": 0}), (Freeze, {}), GLOBAL, PERSONAL),
    "fedbn": partial(agree, (FedBN, {}), AVG, GLOBAL, nets=SMALL),
    "fedbn-norms": partial(agree, (FedBN, {}), LOCAL, nets=[lambda: nn.BatchNorm1d(5)]),
    "fedem": partial(agree, (FedEM, {"components": 1}), AVG, both=TWO),
    "fedper-0": partial(agree, (FedPer, {"personal_layers": 0}), AVG),
    "fedper-2": partial(agree, (FedPer, {"personal_layers": 2}), LOCAL, nets=SMALL),
    "fedphp": partial(agree, (FedPHP, {"inherit_weight": 0.0}), AVG, GLOBAL, both=TWO),
    "fedproto": partial(agree, (FedProto, {"prototype_weight": 0}), LOCAL, both=TWO),
    "fedprox": partial(agree, (FedProx, {"mu": 0}), AVG),
    "fedprox-first-step": partial(
        agree, (FedProx, {"mu": 5.0}), AVG, both={"optimizer": SGD}, batch_size=99, rounds=1
    ),
    "fedprox-p": partial(agree, (FedProxP, {}), (FedProx, {}), both={"mu": 0.5}),
    "fedrep": partial(
        agree, (FedRep, {"head_epochs": 0, "body_epochs": 2}), (Freeze, TWO), nets=SMALL
    ),
    "fedrod": partial(agree, (FedROD, {"gamma": 0}), AVG, same=close),
    "fedtgp": partial(agree, (FedTGP, {"prototype_weight": 0}), LOCAL, both=TWO),
    "fml": partial(
        agree,
        (FML, {"alpha": 1, "beta": 1}),
        (FedAvg, {"weighting": "uniform"}),
        GLOBAL,
        BYTES,
        both=TWO,
    ),
    "fml-local": partial(
        agree,
        (FML, {"alpha": 1, "beta": 1}),
        LOCAL,
        PERSONAL,
        renamed="personal.",
        both=TWO,
    ),
    "ifca": partial(agree, (IFCA, {"k": 1}), AVG, PERSONAL, renamed="clusters.0.", both=TWO),
    **{
        f"knn-per-{mix}": partial(
            agree, (KNNPer, {"share": 0.0, "mix": mix}), AVG, GLOBAL, *((PERSONAL,) * own), both=TWO
        )
        for mix, own in (("probabilities", False), ("logits", True))
    },
    "lg-all": partial(
        agree, (LGFedAvg, {"num_global_layers": 2, "weighting": "samples"}), AVG, nets=SMALL
    ),
    "lg-none": partial(agree, (LGFedAvg, {"num_global_layers": 0}), LOCAL, nets=SMALL),
    "lg-warm": partial(
        agree,
        (LGFedAvg, {"warm_start_rounds": 3, "weighting": "samples"}),
        AVG,
        PERSONAL,
        BYTES,
        nets=SMALL,
        sampler=EVERYBODY,
    ),
    "lp-ft": partial(agree, (LPFT, {}), AVG, GLOBAL, evaluate_every=3),
    "lp-ft-alone": partial(agree, (LPFT, {"lp_epochs": 0, "ft_epochs": 0}), AVG, PERSONAL),
    **{
        f"lp-ft-{ft_bn}": partial(
            agree,
            (LPFT, {"lp_epochs": 0}),
            (FedAvgP, {"ft_epochs": 10}),
            PERSONAL,
            both={"ft_lr": 0.02, "ft_bn": ft_bn},
            nets=(normed,),
        )
        for ft_bn in ("eval", "train")
    },
    "mr-mtl": partial(agree, (MRMTL, {"proximity": 0}), LOCAL, PERSONAL, both=TWO),
    "moon": partial(agree, (MOON, {"mu": 0, "out_dim": 4}), (moon_net, {})),
    **{
        f"pfakd-{weighting}": partial(
            agree,
            (PFAKD, {"distill_weight": 0.0}),
            (FedPer, {}),
            PERSONAL,
            both={"weighting": weighting, "buffers": "local"},
        )
        for weighting in ("samples", "uniform")
    },
    "scaffold": partial(
        agree,
        (SCAFFOLD, {}),
        (FedAvg, {"weighting": "uniform"}),
        both={"optimizer": SGD},
        nets=SMALL,
        rounds=1,
    ),
    "univarfl": partial(
        agree,
        (UniVarFL, {"w_cv": 0.0, "w_he": 0.0, "lr_schedule": "constant"}),
        AVG,
        PERSONAL,
        both=TWO,
    ),
}


@pytest.mark.filterwarnings("ignore:.*has no batch norm")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_method_is_another(case):
    case()
