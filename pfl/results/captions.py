"""Names and captions of the pictures of runs."""

from __future__ import annotations

# Pictures of any run; those of what its server reported of the clients stand in between.
FIRST = {
    "curves": "Against communication rounds, bytes moved both ways, and seconds of training and "
    "aggregation.",
    "clients": "Over clients: quartiles, extremes, mean, and mean of the worst tenth.",
    "data_size": "Against the size of a client's training data. Lines, if there are many: means of "
    "clients of similar size.",
}
LAST = {
    "similarity": "How alike the clients' labels are.",
    "reliability": "Accuracy of the personal models by their confidence; on the diagonal both are "
    "equal.",
}
# Not drawn unasked, unless a run has the file of an analysis.
ASKED = {
    "differences": "Minus the mean over the settings.",
    "fisher": "Trace of the Fisher information of every client's model over rounds.",
    "stragglers": "Share of each client in the sum of all Fisher traces: mean, lowest and highest "
    "round; stragglers are those that did not take part in every round.",
    "replacement": "After replacing a part of the clients' parameters: those with the most Fisher "
    "information, or random ones.",
    "spectrum": "Singular values of the classifier after the last round; in brackets the effective "
    "rank.",
    "numbers": "What the method tells of every client's model after the last round: over clients, "
    "and against their training samples.",
}
# Pictures that there are whatever the method.
NAMES = (*FIRST, *LAST, *ASKED)
