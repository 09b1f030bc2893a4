"""Access to a data module, a whole split at a time."""

import json

import torch


def batch(data, client=0, name="train"):
    """Return a client's whole split as one batch."""
    view = data.split(client, name)
    return view.batch(torch.arange(len(view)))


def held(data, client=0, name="train"):
    """Return the numbers of a client's samples."""
    return data.division.holdings[client].of(name)


def adopted(data, other):
    """Return other data, set up with the transforms of the first, passed through JSON."""
    other.adopt(json.loads(json.dumps(data.transforms())))
    other.setup()
    return other
