"""Methods on adapted pretrained networks: accuracy, megabytes and processor seconds.

``python -m benchmarks.adapters --data DATA`` trains every method on three tasks and prints a table
for each, with means over seeds and the range of accuracies; ``--tasks digits`` chooses. Nothing is
downloaded: the networks are pretrained here, by labels of other images or by masked letters, and
kept in ``DATA/pretrained``. DATA has ``mnist`` (idx files), ``cifar10`` and ``cifar100`` (folders
of images) and ``tinyshakespeare.txt``.
"""

from __future__ import annotations

import argparse
import ast
import copy
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from datamodules import Digits, Dirichlet, Shakespeare, TensorData
from datamodules.idx import read_idx
from lightning_modules import (
    MRMTL,
    Ditto,
    DualLoRA,
    FedAvg,
    FedAvgP,
    FedOTP,
    FedPer,
    FedSALoRA,
    FFALoRA,
    FLoRA,
    Local,
    LoRA,
    SplitNet,
    Timm,
    TwoTowers,
)
from pfl import FederatedLoop

METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Local": (Local, {}),
    "FedAvg": (FedAvg, {}),
    "FedAvg-P": (FedAvgP, {}),
    "FedPer": (FedPer, {}),
    "Ditto": (Ditto, {"proximity": 0.1}),
    "FedSA-LoRA": (FedSALoRA, {}),
    "FFA-LoRA": (FFALoRA, {}),
    "FLoRA": (FLoRA, {}),
    "DualLoRA, T": (DualLoRA, {}),
    "DualLoRA, F": (DualLoRA, {"form": "F"}),
    "MR-MTL": (MRMTL, {}),
}
PROMPTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "FedOTP": (FedOTP, {}),
    "PromptFL": (FedOTP, {"prompts": "global"}),
}
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
RANK = 4
MASKED = 0.15


class LetterBERT(nn.Module):
    """A small BERT of transformers on letters, with a mask behind them.

    Args:
        letters: Number of letters.
        length: Letters of a text.
    """

    def __init__(self, letters: int, length: int) -> None:
        super().__init__()
        library = import_module("transformers")
        config = library.BertConfig(
            vocab_size=letters + 1,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=length + 1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.mask = letters
        self.bert = library.BertModel(config, add_pooling_layer=False)

    def states(self, x: Tensor) -> Tensor:
        """Return (B, L + 1, D) states of (B, L) letters and the mask."""
        masked = F.pad(x, (0, 1), value=self.mask)
        # All letters count; without a mask of its own the library would make one by their values.
        seen = torch.ones_like(masked)
        found: Tensor = self.bert(input_ids=masked, attention_mask=seen).last_hidden_state
        return found

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, D) states of the mask."""
        return self.states(x)[:, -1]


class NamedDigits(TwoTowers):
    """A ViT for digits, and one causal block for their names in letters; prompts have 4 vectors."""

    def __init__(self) -> None:
        names = [[ord(letter) - ord("a") + 4 for letter in name] for name in NAMES]
        super().__init__(names, context=4, width=32, start=1, end=2, scale=20.0)
        self.vision, self.project = vit(1, 8, 2), nn.Linear(96, 32)
        self.tokens, self.places = nn.Embedding(30, 32), nn.Embedding(16, 32)
        self.mixes, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def image(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features of the class token, and of the patches."""
        found = self.project(cast(Any, self.vision).forward_features(x))
        return found[:, 0], found[:, 1:]

    def embed(self, tokens: Tensor) -> Tensor:
        """Return embeddings of letters."""
        vectors: Tensor = self.tokens(tokens)
        return vectors

    def text(self, vectors: Tensor, ends: Tensor) -> Tensor:
        """Return features at the end tokens."""
        h = vectors + self.places.weight[: vectors.shape[1]]
        q, k, v = self.mixes(h).chunk(3, -1)
        h = h + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: Tensor = self.out(h[torch.arange(len(h)), ends])
        return found


@dataclass(frozen=True)
class Task:
    """A federation, and the network that is pretrained for it.

    Attributes:
        data: Makes the data.
        backbone: Makes the backbone, without its pretrained values.
        width: D.
        outputs: C.
        batches: Yields a loss of the backbone and a head for each step of pretraining.
        targets: Layers to adapt; none in two towers, whose prompts are learned.
        rounds: Rounds of each run.
    """

    data: Callable[[], Any]
    backbone: Callable[[], nn.Module]
    width: int
    outputs: int
    classes: int
    losses: Callable[[nn.Module, nn.Module], Iterator[Tensor]]
    targets: tuple[str, ...]
    rounds: int


def vit(channels: int, side: int, patch: int) -> nn.Module:
    """Return the backbone of a ViT of timm with three blocks of 96 units."""
    sizes = {"img_size": side, "patch_size": patch, "depth": 3, "embed_dim": 96, "num_heads": 4}
    return Timm(10, "vit_tiny_patch16_224", (channels, side, side), options=sizes).backbone


def batches(x: Tensor, y: Tensor, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of images in [-1, 1], from bytes, and their labels."""
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for rows in torch.split(order, 128):
            yield x[rows].float() / 127.5 - 1, y[rows]


def by_labels(
    x: Tensor, y: Tensor, epochs: int, body: nn.Module, head: nn.Module
) -> Iterator[Tensor]:
    """Yield the losses of batches of images."""
    for images, labels in batches(x, y, epochs):
        yield F.cross_entropy(head(body(images)), labels)


def by_masks(
    codes: Tensor, length: int, steps: int, body: LetterBERT, head: nn.Module
) -> Iterator[Tensor]:
    """Yield the losses of masked letters, of which the one behind the text is always one."""
    rng = torch.Generator().manual_seed(0)
    for _ in range(steps):
        starts = torch.randint(0, len(codes) - length - 1, (64,), generator=rng)
        whole = codes[starts[:, None] + torch.arange(length + 1)]
        hidden = torch.rand(whole.shape, generator=rng) < MASKED
        hidden[:, -1] = True
        x = torch.where(hidden, body.mask, whole)[:, :-1]
        yield F.cross_entropy(head(body.states(x)[hidden]), whole[hidden])


def pretrained(name: str, task: Task, folder: Path) -> nn.Module:
    """Return the backbone with its pretrained values, which are made if there are none."""
    torch.manual_seed(0)
    body, file = task.backbone(), folder / "pretrained" / f"{name}.pt"
    if not file.exists():
        start, head = time.process_time(), nn.Linear(task.width, task.classes)
        optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=1e-3)
        for loss in task.losses(body, head):
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        print(f"{name}: pretrained in {time.process_time() - start:.0f} s, {loss.item():.2f}")
        file.parent.mkdir(exist_ok=True)
        torch.save(body.state_dict(), file)
    body.load_state_dict(torch.load(file, weights_only=True))
    return body


def small_mnist(folder: Path) -> tuple[Tensor, Tensor]:
    """Return MNIST's training images in the resolution of the digits, and their labels."""
    images = torch.from_numpy(read_idx(folder / "mnist" / "train-images-idx3-ubyte.gz").copy())
    labels = torch.from_numpy(read_idx(folder / "mnist" / "train-labels-idx1-ubyte.gz")).long()
    return F.avg_pool2d(F.pad(images[:, None].float(), (2, 2, 2, 2)), 4), labels


def digits(folder: Path) -> Task:
    """Return the digits on a ViT pretrained on MNIST in their resolution."""
    return Task(
        data=lambda: Digits(num_clients=20, partition=Dirichlet(0.1), batch_size=16),
        backbone=partial(vit, 1, 8, 2),
        width=96,
        outputs=10,
        classes=10,
        losses=lambda body, head: by_labels(*small_mnist(folder), 2, body, head),
        targets=("*attn.qkv", "*attn.proj"),
        rounds=5,
    )


def named_digits(folder: Path) -> Task:
    """Return the digits on two towers pretrained on MNIST and the names of its classes."""
    task = digits(folder)

    def losses(body: nn.Module, head: nn.Module) -> Iterator[Tensor]:
        towers = cast(NamedDigits, body)
        for x, y in batches(*small_mnist(folder), 2):
            names = F.normalize(towers.text(towers.embed(towers.texts), towers.ends), dim=-1)
            pooled, patches = towers.image(x)
            seen = F.normalize(torch.stack([pooled, patches.mean(1)]), dim=-1)
            cosines = (seen @ names.T).flatten(0, 1)
            yield F.cross_entropy(towers.scale * cosines, y.repeat(2))

    return replace(task, backbone=NamedDigits, losses=losses, targets=())


def cifar10(folder: Path) -> Task:
    """Return 20 clients with some 200 images of CIFAR-10, on a ViT pretrained on CIFAR-100."""
    pixels, classes = images_of(folder / "cifar10", 6000)
    return Task(
        data=lambda: TensorData(
            {"x": pixels, "y": classes},
            num_clients=20,
            partition=Dirichlet(0.3),
            batch_size=32,
            test_fraction=1 / 3,
        ),
        backbone=partial(vit, 3, 32, 8),
        width=96,
        outputs=10,
        classes=100,
        losses=lambda body, head: by_labels(*images_of(folder / "cifar100", 15_000), 2, body, head),
        targets=("*attn.qkv", "*attn.proj"),
        rounds=3,
    )


def images_of(folder: Path, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Return pixels and classes of training images, in an order that is drawn."""
    classes = sorted(path for path in (folder / "train").iterdir())
    files = [(file, k) for k, place in enumerate(classes) for file in sorted(place.iterdir())]
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0))[:count]
    some = [files[row] for row in order.tolist()]
    pixels = [torch.from_numpy(np.array(Image.open(file).convert("RGB"))) for file, _ in some]
    return torch.stack(pixels).permute(0, 3, 1, 2), torch.tensor([k for _, k in some])


def shakespeare(folder: Path) -> Task:
    """Return ten roles of Shakespeare, on a BERT pretrained on the others by masked letters."""
    file, length = folder / "tinyshakespeare.txt", 40
    data = Shakespeare(str(file), roles=10, length=length, stride=40, batch_size=32)
    letters = [ast.literal_eval(name) for name in data.class_names]
    said: dict[str, list[str]] = defaultdict(list)
    for role, speech in re.findall(r"^([^\n:]+):\n(.+?)(?:\n\n|\Z)", file.read_text(), re.M | re.S):
        said[role].append(speech)
    texts = sorted(("\n".join(speeches) for speeches in said.values()), key=len)[:-10]
    number = {letter: place for place, letter in enumerate(letters)}
    codes = torch.tensor([number[letter] for letter in "\n".join(texts) if letter in number])
    return Task(
        data=lambda: data,
        backbone=partial(LetterBERT, len(letters), length),
        width=64,
        outputs=len(letters),
        classes=len(letters),
        losses=partial(by_masks, codes, length, 1500),
        targets=("*.query", "*.value"),
        rounds=3,
    )


TASKS: dict[str, Callable[[Path], Task]] = {
    "digits": digits,
    "named_digits": named_digits,
    "cifar10": cifar10,
    "shakespeare": shakespeare,
}


def measured(name: str, task: Task, body: nn.Module, method: str, seed: int) -> tuple[float, ...]:
    """Return accuracy in per cent, megabytes of all messages, and processor seconds of a run."""
    torch.manual_seed(seed)
    net, (kind, options) = copy.deepcopy(body), (METHODS | PROMPTS)[method]
    if task.targets:
        whole = SplitNet(net, nn.Linear(task.width, task.outputs))
        net = LoRA(whole, rank=RANK, targets=task.targets)
    module = kind(
        net,
        optimizer=partial(torch.optim.AdamW, lr=3e-3),
        epochs=1,
        **options,
    )
    loop = FederatedLoop(
        task.rounds,
        seed=seed,
        engine="sequential",
        evaluate_every=task.rounds,
        progress=False,
    )
    start = time.process_time()
    run = loop.fit(module, task.data())
    row = run.history[-1]
    scores = 100 * row["test/personal/acc"], row["comm/bytes_total"] / 1e6
    return *scores, time.process_time() - start


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--tasks", nargs="*", default=[*TASKS], choices=TASKS)
    parser.add_argument("--methods", nargs="*", default=[*METHODS], choices=METHODS)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.tasks:
        task = TASKS[name](given.data)
        body = pretrained(name, task, given.data)
        print(f"\n| {name} | accuracy, % | MB | processor s |\n| --- | ---: | ---: | ---: |")
        for method in given.methods if task.targets else PROMPTS:
            found = [measured(name, task, body, method, seed) for seed in given.seeds]
            cells = [f"{sum(values) / len(values):.1f}" for values in zip(*found, strict=True)]
            scores = [score for score, *_ in found]
            if len(scores) > 1:
                cells[0] += f" ({min(scores):.1f} to {max(scores):.1f})"
            print(f"| {method} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
