"""Names and captions of the pictures of runs."""

from __future__ import annotations

# Pictures of any run; pictures of values that its server reported stand between the two groups.
FIRST = {
    "curves": "Against communication rounds, bytes moved both ways, and seconds of training and "
    "aggregation.",
    "clients": "Over clients: quartiles, extremes, mean, and mean of the worst tenth.",
    "data_size": "Against the size of a client's training data. With many clients, lines show "
    "means over clients of similar size.",
}
LAST = {
    "similarity": "Similarity of the clients' label distributions.",
    "reliability": "Accuracy of the personal models against their confidence; on the diagonal both "
    "are equal.",
}
# Drawn only on request, or if a run has the file of an analysis.
ASKED = {
    "differences": "Difference from the mean over the settings.",
    "newcomers": "Clients that joined later: zero-shot (0), after each local round, and tuned by "
    "SGD; at the right the mean of the clients that trained.",
    "cross": "Score of each client's model (rows) on each client's test data (columns).",
    "fisher": "Trace of the Fisher information of every client's model over rounds.",
    "stragglers": "Share of each client in the sum of all Fisher traces: mean, lowest and highest "
    "round; stragglers are clients that did not take part in every round.",
    "replacement": "After replacing a share of the clients' parameters: those with the most Fisher "
    "information, or random ones.",
    "spectrum": "Singular values of the classifier after the last round; in brackets the effective "
    "rank.",
    "numbers": "Numbers that the method reports about each client's model after the last round: "
    "their distribution over clients, and against training samples.",
}
# Pictures that exist for every method.
NAMES = (*FIRST, *LAST, *ASKED)
