"""Two towers: CLIP of transformers gives the library's own features."""

import sys

import pytest
import torch

from lightning_modules.nets import CLIP
from pfl.core.seeds import scoped

SIZES = {"hidden_size": 8, "intermediate_size": 16}
SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 2}
CONFIG = {
    "text_config": {**SIZES, "vocab_size": 20, "bos_token_id": 18, "eos_token_id": 19},
    "vision_config": {**SIZES, "image_size": 8, "patch_size": 4},
    "projection_dim": 6,
}


def test_features_are_the_librarys():
    pytest.importorskip("transformers")
    with scoped(3):
        towers = CLIP([[4, 1], [5, 6, 1]], context=2, config=CONFIG).eval()
        x = torch.randn(3, 3, 8, 8)
    pooled, patches = towers.image(x)
    assert torch.allclose(pooled, towers.clip.get_image_features(x).pooler_output, atol=1e-6)
    assert patches.shape == (3, 4, 6)
    prompt = towers.embed(torch.tensor([7, 8]))
    tokens = towers.texts.clone()
    tokens[:, 1:3] = torch.tensor([7, 8])
    theirs = towers.clip.get_text_features(tokens).pooler_output
    assert torch.allclose(towers.describe(prompt), theirs, atol=1e-6)


def test_a_folder_is_read(tmp_path):
    pytest.importorskip("transformers")
    first = CLIP([[4, 1]], context=2, config=CONFIG)
    first.clip.save_pretrained(tmp_path)
    again = CLIP([[4, 1]], str(tmp_path), context=2)
    x = torch.randn(1, 3, 8, 8)
    assert torch.equal(again.image(x)[1], first.image(x)[1])
    assert again.scale == pytest.approx(float(first.clip.logit_scale.exp()))
    torch.save(first.clip.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(OSError, match="safetensors"):
        CLIP([[4, 1]], str(tmp_path), context=2)


def test_without_transformers_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'pfl-lightning\[transformers\]'"):
        CLIP([[4, 1]], config=CONFIG)
