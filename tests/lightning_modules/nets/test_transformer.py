"""The small vision Transformer: what it computes, what it refuses, and pre-trained values."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lightning_modules.nets import ViT
from lightning_modules.nets.initial import redraw
from pfl.core.seeds import scoped
from tests.helpers.messages import parts, refuses

SMALL = {"patch": 2, "width": 8, "blocks": 2, "heads": 2, "mlp": 6}


def make(classes=3, shape=(1, 4, 6), seed=0, **options):
    with scoped(seed):
        return ViT(classes, shape, **{**SMALL, **options}).eval()


def saved(tmp_path, net):
    path = tmp_path / "values.pt"
    torch.save(net.state_dict(), path)
    return str(path)


def test_a_block_is_torchs_own_pre_norm_block():
    """The same weights in ``nn.TransformerEncoderLayer`` give the same tokens."""
    block = make().backbone[1]
    layer = torch.nn.TransformerEncoderLayer(
        8, 2, 6, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    ).eval()
    pairs = {
        "self_attn.in_proj": block.queries_keys_values,
        "self_attn.out_proj": block.join,
        "norm1": block.before_attention,
        "norm2": block.mlp[0],
        "linear1": block.mlp[1],
        "linear2": block.mlp[3],
    }
    values = {}
    for name, ours in pairs.items():
        mark = "_" if name.endswith("in_proj") else "."
        values |= {f"{name}{mark}weight": ours.weight, f"{name}{mark}bias": ours.bias}
    layer.load_state_dict(values)
    with scoped(3):
        tokens = torch.randn(2, 7, 8)
    torch.testing.assert_close(block(tokens), layer(tokens))


def test_patches_become_tokens_at_their_own_positions():
    """One patch of ones on a blank image changes its token alone, by the patch's projection."""
    tokens = make().backbone[0]
    blank = torch.zeros(1, 1, 4, 6)
    image = blank.clone()
    image[..., 2:, 2:4] = 1
    change = tokens(image) - tokens(blank)
    assert change.shape == (1, 7, 8)
    assert change.abs().sum(-1).nonzero()[:, 1].tolist() == [5]
    torch.testing.assert_close(change[0, 5], tokens.patches.weight.sum((1, 2, 3)))


def test_the_class_token_is_read():
    """The features are the first of the normed tokens."""
    net, image = make(), torch.ones(2, 1, 4, 6)
    torch.testing.assert_close(net.backbone(image), net.backbone[:-1](image)[:, 0])


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [((1, 5, 6), {}, "ViT ~ 5x6 ~ 2x2"), ((1, 4, 6), {"heads": 3}, "heads ~ width ~ 3 ~ 8")],
)
def test_sizes_that_do_not_fit_are_refused(shape, options, message):
    with pytest.raises(ValueError, match=parts(message)):
        make(shape=shape, **options)


def test_sizes_below_one_are_refused():
    refuses(partial(ViT, 10), "at least 1", patch=0, width=0, blocks=(0, -1), heads=0, mlp=0)


def test_new_initial_values_reach_every_entry():
    """All but the constants that norms and their biases start from."""
    net = make()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    redraw(net, 5)
    same = {name for name, value in net.state_dict().items() if torch.equal(value, before[name])}
    norms = ("backbone.3.", "before_attention.", "mlp.0.")
    assert {name for name in same if not any(norm in name for norm in norms)} == set()


def test_a_checkpoint_gives_the_backbone_which_clients_keep(tmp_path):
    trained = make(classes=5, seed=1)
    net = make(checkpoint=saved(tmp_path, trained))
    image = torch.rand(2, 1, 4, 6)
    assert torch.equal(net.backbone(image), trained.backbone(image))
    assert net(image).shape == (2, 3)
    head = net.head.weight.clone()
    redraw(net, 5)
    assert torch.equal(net.backbone(image), trained.backbone(image))
    assert not torch.equal(net.head.weight, head)


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(ValueError, match=parts("checkpoint: ~ nowhere.pt")):
        make(checkpoint="nowhere.pt")
    with pytest.raises(ValueError, match=parts("checkpoint: ~ ViT ~ backbone.* ~ size mismatch")):
        make(checkpoint=saved(tmp_path, make(width=4)))
    (tmp_path / "values.pt").write_text("not torch's")
    with pytest.raises(ValueError, match=parts("checkpoint: ~ values.pt ~ ViT ~ backbone.*")):
        make(checkpoint=str(tmp_path / "values.pt"))
