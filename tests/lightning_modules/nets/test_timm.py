"""Networks of timm: from its names and files of weights, or a clear refusal."""

from __future__ import annotations

import sys

import pytest
import torch

from lightning_modules.nets import Timm
from tests.helpers.messages import parts

SHAPE = (3, 32, 32)


def test_without_timm_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r"pip install 'pfl-lightning\[timm\]'"):
        Timm(3, "resnet10t")


@pytest.mark.parametrize("name", ["pretrained", "pretrained_cfg", "checkpoint_path"])
def test_timm_itself_neither_downloads_nor_unpickles_weights(name):
    with pytest.raises(ValueError, match=parts(f"weights ~ {name} ~ options")):
        Timm(3, "resnet10t", SHAPE, options={name: "weights.pth"})


def test_weights_come_from_a_file_without_the_classifier(tmp_path):
    timm = pytest.importorskip("timm")
    from safetensors.torch import save_file

    given = timm.create_model("resnet10t", num_classes=5)
    torch.save(given.state_dict(), tmp_path / "weights.pt")
    save_file(given.state_dict(), tmp_path / "weights.safetensors")
    for name in ("weights.pt", "weights.safetensors"):
        net = Timm(3, "resnet10t", SHAPE, weights=str(tmp_path / name))
        assert torch.equal(net.backbone.conv1[0].weight, given.conv1[0].weight)
        assert net(torch.zeros(2, *SHAPE)).shape == (2, 3)
        assert net.features == given.num_features


def test_what_does_not_fit_is_refused(tmp_path):
    timm = pytest.importorskip("timm")
    torch.save(timm.create_model("resnet10t").state_dict(), tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=parts("weights.pt ~ resnet14t")):
        Timm(3, "resnet14t", SHAPE, weights=str(tmp_path / "weights.pt"))
    with pytest.raises(FileNotFoundError, match=parts("no weights file ~ none.pt")):
        Timm(3, "resnet10t", SHAPE, weights=str(tmp_path / "none.pt"))
    with pytest.raises(ValueError, match=parts("timm ~ 'resnet_10'")):
        Timm(3, "resnet_10", SHAPE)
    with pytest.raises(ValueError, match=parts("vit_tiny_patch16_224 ~ (3, 32, 32)")):
        Timm(3, "vit_tiny_patch16_224", SHAPE)
    with pytest.raises(ValueError, match=parts("'hf_hub:someone/something' ~ download")):
        Timm(3, "hf_hub:someone/something", SHAPE)
    (tmp_path / "broken.pt").write_bytes(b"no weights")
    with pytest.raises(OSError, match=parts("broken.pt ~ weights file")):
        Timm(3, "resnet10t", SHAPE, weights=str(tmp_path / "broken.pt"))


def test_an_option_reaches_timm():
    pytest.importorskip("timm")
    net = Timm(3, "vit_tiny_patch16_224", SHAPE, options={"img_size": 32})
    assert net(torch.zeros(2, *SHAPE)).shape == (2, 3)
