"""Try the corpus: ``python -m tests.datamodules.corpus [SEED]`` prints a table by reader."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.datamodules.corpus.every import DAMAGED, SOUND
from tests.datamodules.corpus.kinds import judge


def main(seed: int) -> int:
    """Judge every case; return the number of those that are not well."""
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate((*DAMAGED, *SOUND)):
            answer = judge(case, Path(folder, str(number)), seed)
            counts[case.reader + (" (sound)" if not case.words else ""), answer.kind] += 1
            if answer.kind != "well":
                print(f"{answer.kind}: {case}: {' | '.join(answer.said)[:400]}")
    for reader in dict.fromkeys(name for name, _ in counts):
        kinds = {kind: count for (name, kind), count in sorted(counts.items()) if name == reader}
        print(f"{reader:20} {sum(kinds.values()):4}  {kinds}")
    return sum(count for (_, kind), count in counts.items() if kind != "well")


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)))
