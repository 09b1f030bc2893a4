"""The files of measurements."""

from __future__ import annotations

import pytest

from benchmarks.round import _add
from tests.helpers.messages import parts


def test_rows_are_added_below_the_header_of_their_own_columns_alone(tmp_path):
    file = tmp_path / "new" / "a.csv"
    for number in (1, 2):
        _add(file, [{"net": "mlp", "round": number}])
    assert file.read_text().splitlines() == ["net,round", "mlp,1", "mlp,2"]
    with pytest.raises(SystemExit, match=parts("a.csv: ~ net, round, ~ net, of limit: ~ another")):
        _add(file, [{"net": "mlp", "of limit": 3}])
    assert file.read_text().splitlines() == ["net,round", "mlp,1", "mlp,2"]
