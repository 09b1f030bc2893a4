"""Number of floats that each method sends in a round on :func:`pfl.testing.toy.mlp`.

Its backbone has 5 * 6 + 6 parameters and its head 6 * 3 + 3; D = 6 features, C = 3 classes.
"""

from __future__ import annotations

BODY, HEAD, MEANS = 36, 21, 18
NET = BODY + HEAD
# Down and up, or one number for both.
MOVED = {
    # Down: the cores of two other clients, and for ten clients presence and initial shares.
    "APPLE": (2 * NET + 2 * 10, NET),
    **dict.fromkeys(("APFL", "CFL", "Ditto", "FedALA", "FedAvg", "FedAvgP", "FedBN"), NET),
    **dict.fromkeys(("FedProx", "FedProxP", "FedROD", "FedSimSup", "KNNPer", "LPFT"), NET),
    **dict.fromkeys(("FedDyn", "PerFedAvg", "PFedMe", "UniVarFL"), NET),
    **dict.fromkeys(("FedBABU", "FedPer", "FedRep", "FedSimSupSerial", "Freeze", "PFAKD"), BODY),
    **dict.fromkeys(("FedAMP", "FedCAC", "FedPHP", "FML", "PFedSim"), NET),
    # Three of six hidden units with 5 weights and a bias each; 3 * 3 weights and 3 biases.
    **dict.fromkeys(("CD2PFed", "CD2PFedAligned"), 3 * 6 + 9 + 3),
    "FedAS": (BODY, BODY + 1),
    # Down: the means; up: the trace, sums and counts.
    "FedASVariant": (BODY + MEANS, BODY + 1 + MEANS + 3),
    # A head, and a policy of 6 * 12 + 12 weights and 2 * 12 of its norm.
    "FedCP": NET + 84 + 24,
    # Three components.
    "FedEM": 3 * NET,
    # Down after the first round: the common mean of six features.
    "FedDBE": (NET + 6, NET),
    # Logits of twelve public samples.
    "FedMD": 12 * 3,
    # Down: the centroids; up: also counts, variance and profile.
    "FedPAC": (NET + MEANS, NET + MEANS + 3 + 1 + MEANS),
    # Embeddings, two maps of the valve, and four vectors of its norms.
    "GPFL": BODY + MEANS + 2 * (6 * 6 + 6) + 4 * 6,
    # Down: two models; up: one and its number.
    "IFCA": (2 * NET, NET + 1),
    "LGFedAvg": HEAD,
    "Local": 0,
    "PFedHN": NET,
    # 36 entries of the body, 6 * 6 + 6 and 6 * 4 + 4 of the projector, 4 * 3 + 3 of the head.
    "MOON": 36 + 42 + 28 + 15,
    # A mean and a deviation of each parameter.
    "PFedBayes": 2 * NET,
    # Means and half a covariance.
    "PFedFDA": BODY + MEANS + 21,
    "PFedVEM": (NET, NET + 1),
    # The network and a variate.
    "SCAFFOLD": 2 * NET,
}
# Received floats of methods that upload a row and its number for each of the client's classes.
ROWS = {"FedProto": MEANS, "FedTGP": MEANS, "FedGH": HEAD}


def floats(module, info):
    """Return what a participant receives and sends in a round, in the form of :class:`Subject`."""
    down = ROWS.get(type(module).__name__)
    if down is not None:
        return down, int((info.label_counts > 0).sum()) * (6 + 1)
    if type(module).__name__ == "FedFomo":
        # Down: two candidates, once all have uploaded, and their numbers; up: also three ratings.
        return (2 * NET if info.round > 1 else 0) + 2, NET + 2 + 3
    moved = MOVED[type(module).__name__]
    return moved if isinstance(moved, tuple) else (moved, moved)
