"""Networks of transformers from local folders, pooled as told; nothing is fetched or run."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from lightning_modules.nets import LoRA, Pretrained
from tests.helpers.messages import parts

TOKENS = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]])


@pytest.fixture
def folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=20, intermediate_size=8, **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path)
    return tmp_path


def test_without_transformers_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'pfl-lightning\[transformers\]'"):
        Pretrained(3, "hf:bert-base-uncased")


def test_outputs_are_pooled_over_tokens_that_are_no_padding(folder):
    nets = {
        pool: Pretrained(3, "hf:bert", str(folder), pool=pool).eval()
        for pool in ("mean", "first", "last", "pooler")
    }
    found = nets["mean"].backbone.model(TOKENS, attention_mask=(TOKENS != 0).long())
    hidden = found.last_hidden_state
    right = {
        "mean": torch.stack([hidden[0, :3].mean(0), hidden[1, :2].mean(0)]),
        "first": hidden[:, 0],
        "last": torch.stack([hidden[0, 2], hidden[1, 1]]),
        "pooler": found.pooler_output,
    }
    for pool, net in nets.items():
        assert torch.allclose(net.backbone(TOKENS), right[pool], atol=1e-6)
        assert net(TOKENS).shape == (2, 3)
    named = {"input_ids": TOKENS, "attention_mask": (TOKENS != 0).long()}
    assert torch.equal(nets["mean"](named), nets["mean"](TOKENS))


def test_a_pretrained_network_is_adapted(folder):
    net = LoRA(Pretrained(3, f"hf:{folder}"), rank=2, targets=["*query", "*value"])
    assert len(net.state_dict()) == 2 * 2 + 2


def test_what_is_not_there_is_not_fetched(folder, tmp_path):
    with pytest.raises(OSError, match=parts("no weights ~ nobody/nothing ~ download: true")):
        Pretrained(3, "hf:nobody/nothing")
    with pytest.raises(FileNotFoundError, match="no folder"):
        Pretrained(3, "hf:bert", str(tmp_path / "other"))


def test_pickled_weights_and_code_of_a_folder_are_refused(folder):
    weights = folder / "model.safetensors"
    torch.save({}, folder / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(OSError, match=parts("no weights in safetensors")):
        Pretrained(3, f"hf:{folder}")
    config = json.loads((folder / "config.json").read_text())
    own = {"model_type": "mine", "auto_map": {"AutoConfig": "code.C", "AutoModel": "code.M"}}
    (folder / "code.py").write_text("raise SystemExit('run')")
    (folder / "config.json").write_text(json.dumps({**config, **own}))
    with pytest.raises(ValueError, match=r"trust_remote_code|mine"):
        Pretrained(3, f"hf:{folder}")


def test_a_pool_that_is_none_is_refused():
    with pytest.raises(ValueError, match=parts("pool ~ 'max'")):
        Pretrained(3, "hf:bert", pool="max")


def test_names_without_a_library_are_those_of_timm():
    pytest.importorskip("timm")
    net = Pretrained(3, "resnet10t", input_shape=(3, 32, 32))
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 3)
