"""Each personal model on every client's test data, as a matrix.

``pfl test --cross`` writes it. The idea is that of FLIU, arXiv 2510.24503: a personal model that is
as good elsewhere as at home is not personal, and one that is useless elsewhere has learned only its
own client.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from pfl.federation.evaluator import Evaluator
from pfl.training import client_round

FILE = "cross.csv"


def rows(evaluator: Evaluator) -> Iterator[dict[str, float]]:
    """Yield the main score of each client's model on each client's test data."""
    run, scorer = evaluator.run, evaluator.scorer
    main = next(iter(scorer.better))
    tested = [c for c in range(run.data.num_clients) if len(run.data.split(c, "test"))]
    for model in tested:
        context = run.personal(model)
        answers = (client_round.on_splits(context, client, ("test",)) for client in tested)
        scored = client_round.scored(scorer, answers)
        for client, scores in zip(tested, scored, strict=True):
            score = scores["test"].get(main, math.nan)
            yield {"round": run.round, "model": model, "client": client, "score": score}
