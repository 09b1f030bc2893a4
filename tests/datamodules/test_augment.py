"""Random crop and mirror image, sample by sample."""

import torch

from datamodules import CropFlip


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def images(count=64, size=6, channels=2):
    return torch.randint(1, 256, (count, channels, size, size), generator=rng()).to(torch.uint8)


def test_every_result_is_one_of_the_crops_of_its_image():
    """6x6 images padded by 2 have (2 * 2 + 1)^2 = 25 crops, mirrored or not."""
    given = images()
    padded = torch.nn.functional.pad(given, [2] * 4)
    results = CropFlip(padding=2)(given, rng(1))
    seen = set()
    for before, after in zip(padded, results, strict=True):
        crops = {
            (top, left, mirrored): before[:, top : top + 6, left : left + 6]
            for top in range(5)
            for left in range(5)
            for mirrored in (False, True)
        }
        matching = [
            key
            for key, crop in crops.items()
            if torch.equal(crop.flip(-1) if key[2] else crop, after)
        ]
        assert len(matching) == 1
        seen.add(matching[0])
    # Each sample has draws of its own: 64 draws from 50 are not a few.
    assert len(seen) > 25


def test_flip_alone_mirrors_about_half():
    given = images(400)
    results = CropFlip(padding=0)(given, rng(2))
    mirrored = (results == given.flip(-1)).flatten(1).all(1)
    assert torch.equal(results[~mirrored], given[~mirrored])
    assert 140 < mirrored.sum() < 260
