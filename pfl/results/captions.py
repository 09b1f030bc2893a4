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
# Pictures that there are whatever the method.
NAMES = (*FIRST, *LAST)
