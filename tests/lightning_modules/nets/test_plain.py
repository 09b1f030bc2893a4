"""Sizes of the papers' networks, and what they accept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_modules.nets import (
    CNN2,
    CNN3,
    CNN5,
    CNN8,
    MLP,
    FashionCNN,
    LeNet5,
    Projected,
    ResNet18,
    SplitNet,
    ViT,
)
from pfl.core.seeds import scoped
from tests.helpers.messages import parts
from tests.helpers.stacking import check_stacked

FASHION = (1, 28, 28)
CIFAR = (3, 32, 32)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


SIZES = {
    # FedAS: base 2,432 + 51,264 + 819,712.
    "fedas_cifar10": (lambda: CNN2(10), 873_408, 5_130, 512),
    "fedas_cifar100": (lambda: CNN2(100), 873_408, 51_300, 512),
    # 1x28x28 leaves 4x4: 1 -> 32 has 832, 32 -> 64 has 51,264, 1024 -> 512 has 524,800.
    "fedas_grey": (lambda: CNN2(10, FASHION), 832 + 51_264 + 524_800, 5_130, 512),
    "pfakd_cifar10": (lambda: CNN3(10), 43_616, 650, 64),
    "pfakd_cifar10_block": (lambda: CNN3(10, head_split="fc_block"), 27_168, 17_098, 256),
    "pfakd_fmnist": (lambda: FashionCNN(10), 115_776, 1_290, 128),
    "pfakd_cifar100": (lambda: ResNet18(100), 11_168_832, 51_300, 512),
    # UniVarFL's small CNN: 161,594 in all.
    "univarfl_cnn": (lambda: CNN8(10), 161_594 - 2_570, 2_570, 256),
    # 11,168,832 + the shortcut of the first stage (64*64 + 128) + 2 (512*512 + 512 + 1024).
    "univarfl_resnet": (
        lambda: ResNet18(100, first_stride=2, projector=512),
        11_168_832 + 4_224 + 527_360,
        51_300,
        512,
    ),
    "pfedvem_cifar10": (lambda: LeNet5(10, channels=(16, 32)), 120_332, 850, 84),
    "pfedvem_cifar100": (lambda: CNN5(20), 618_916, 2_020, 100),
    "pfedvem_sun397": (lambda: CNN5(3, (3, 64, 64)), 618_916, 303, 100),
    "pfedvem_fmnist": (lambda: MLP(10), 784 * 100 + 100, 1_010, 100),
    "lenet5": (lambda: LeNet5(10), 62_006 - 850, 850, 84),
    # Inter-learning models and supervisors of FedSimSup; totals 52,202, 63,092, 40,914,
    # 8,422, 10,824 and 6,956.
    "inter_10": (lambda: LeNet5(10, hidden=[120]), 52_202 - 1_210, 1_210, 120),
    "inter_100": (lambda: LeNet5(100, hidden=[120]), 63_092 - 12_100, 12_100, 120),
    "inter_62": (lambda: LeNet5(62, FASHION, hidden=[120]), 40_914 - 7_502, 7_502, 120),
    "supervisor_10": (lambda: LeNet5(10, CIFAR, (3, 6), [48]), 8_422 - 490, 490, 48),
    "supervisor_100": (lambda: LeNet5(100, CIFAR, (3, 6), [40]), 10_824 - 4_100, 4_100, 40),
    "supervisor_62": (lambda: LeNet5(62, FASHION, (3, 6), [40]), 6_956 - 2_542, 2_542, 40),
    # Kinds of supervisors of FedSimSup's Table 4: the LeNet-5 above, 44,266 and 50,116, and the
    # Transformer of 75,082 and 80,932.
    "kind_C_100": (lambda: CNN3(100), 50_116 - 6_500, 6_500, 64),
    "kind_T_10": (lambda: ViT(10), 75_082 - 650, 650, 64),
    "kind_T_100": (lambda: ViT(100), 80_932 - 6_500, 6_500, 64),
    # LeNet-5's backbone, then 84 -> 84 and 84 -> 256.
    "moon": (lambda: Projected(LeNet5(10)), 61_156 + 7_140 + 21_760, 2_570, 256),
}


def test_backbone_head_and_features_have_the_papers_sizes():
    """No parameter lies outside of backbone and head."""
    for name, (build, *sizes) in SIZES.items():
        net = build()
        assert [count(net.backbone), count(net.head), net.features] == sizes, name
        assert count(net) == sum(sizes[:2]), name


BUILDERS = {
    "CNN2": (CNN2, 16),
    "CNN3": (CNN3, 24),
    "CNN5": (CNN5, 1),
    "CNN8": (CNN8, 21),
    "FashionCNN": (FashionCNN, 12),
    "LeNet5": (LeNet5, 16),
    "MLP": (MLP, 1),
    "ResNet18": (ResNet18, 1),
}


def test_networks_take_every_image_from_their_smallest_on():
    for name, (build, least) in BUILDERS.items():
        for shape in [(3, least, least), (1, least + 3, least + 10), (2, 33, 29)]:
            net = build(7, shape).eval()
            x = torch.zeros(1, *shape)
            assert net(x).shape == (1, 7), name
            assert net.backbone(x).shape == (1, net.features), name
            assert net.num_classes == 7, name


def test_an_image_that_is_too_small_is_refused_with_the_least_size():
    for name, (build, least) in BUILDERS.items():
        if least > 1:
            message = f"{name} ~ (3, {least - 1}, 40) ~ at least 3x{least}x{least}"
            with pytest.raises(ValueError, match=parts(message)):
                build(10, (3, least - 1, 40))


def test_channels_last_is_refused():
    with pytest.raises(ValueError, match=parts("CNN2 ~ (32, 32, 3) ~ channels, height, width")):
        CNN2(10, (32, 32, 3))


def test_head_split_changes_names_only():
    """Both splits hold the same layers in the same order, so one seed gives one function."""
    nets = []
    for head_split in ("last_fc", "fc_block"):
        with scoped(3):
            nets.append(CNN3(10, head_split=head_split))
    x = torch.rand(2, *CIFAR)
    assert torch.equal(nets[0](x), nets[1](x))
    with pytest.raises(ValueError, match=parts("head_split ~ last_fc, fc_block ~ fc")):
        CNN3(10, head_split="fc")


def test_an_mlp_takes_tables_with_any_number_of_hidden_layers():
    """Of seven columns: 7 * 5 + 5, 5 * 4 + 4, 4 * 2 + 2; without hidden layers 7 * 2 + 2."""
    net = MLP(2, (7,), hidden=[5, 4])
    assert (count(net), net.features) == (40 + 24 + 10, 4)
    assert net(torch.zeros(3, 7)).shape == (3, 2)
    assert count(MLP(2, (7,), hidden=())) == 16
    states = []
    for hidden in (100, [100]):
        with scoped(3):
            states.append(MLP(10, hidden=hidden).state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match=r"hidden.* 1.* 0"):
        MLP(10, hidden=[8, 0])
    with pytest.raises(ValueError, match=r"num_classes.* 1.* 0"):
        SplitNet(nn.Flatten(), nn.Identity(), features=4, num_classes=0)
    with pytest.raises(ValueError, match="hidden"):
        LeNet5(10, hidden=[])


@pytest.mark.parametrize("build", [CNN2, CNN3, LeNet5, CNN5, MLP])
def test_stacked_clients_have_the_logits_of_each_alone(build):
    check_stacked([build(4, CIFAR) for _ in range(2)], CIFAR, rtol=1e-4, atol=1e-6)
