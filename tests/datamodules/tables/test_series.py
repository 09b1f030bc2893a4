"""Windows of a long table, by hand: which rows they have, which split, in which units."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

from datamodules.partition.partitioner import ByDomain
from datamodules.tables.series import TimeSeries
from pfl.__main__ import main
from pfl.core.forecast import Forecast
from tests.helpers.data import batch
from tests.helpers.messages import parts, says


def table(folder, rows, columns="who,hour,load,warm"):
    file = folder / "load.csv"
    file.write_text("\n".join([columns, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return str(file)


def two(count=12):
    """Client a has loads 0, 1, ... and client b 100, 101, ..., in turns; the last row first."""
    rows = [(who, hour, base + hour, -hour) for hour in range(count) for who, base in PAIR]
    return rows[::-1]


PAIR = (("a", 0), ("b", 100))


def series(folder, rows=None, past=3, **options):
    options = {"time_column": "hour", "standardise": "none", **options}
    data = TimeSeries(table(folder, rows or two()), "load", "who", past, **options)
    data.setup()
    return data


def windows(data, client, name):
    """Return the loads of each window, those to be predicted last."""
    x, y, *_ = batch(data, client, name)
    return torch.cat([x[:, :, 0], y], 1).tolist()


def test_windows_are_rows_of_one_client_in_order_of_time(tmp_path):
    """Ten windows of three rows; the last quarter, rounded to two, is for testing."""
    data = series(tmp_path, past=2)
    assert data.num_clients == 2
    for client, (_, base) in enumerate(PAIR):
        expected = [[base + start + row for row in range(3)] for start in range(10)]
        assert windows(data, client, "train") == expected[:8]
        assert windows(data, client, "test") == expected[8:]


def test_features_follow_the_targets(tmp_path):
    data = series(tmp_path, past=2, features=["warm"])
    assert data.input_shape == (2, 2)
    assert data.split(0, "train").batch(torch.tensor([3])).x.tolist() == [[[3, -3], [4, -4]]]


def test_no_target_of_one_split_is_a_target_of_another(tmp_path):
    """Windows start at 0 to 7, targets are rows s + 2 to s + 4; two are tested, one validated.

    Tested are the targets of rows 8 to 11. The validating window has 7 to 9 and is left out, as are
    those before it with targets from row 7 on: what is left has its last target at row 6.
    """
    data = series(tmp_path, past=2, horizon=3, val_fraction=0.1)
    assert [window[:1] for window in windows(data, 0, "test")] == [[6], [7]]
    assert windows(data, 0, "val") == []
    assert [window[0] for window in windows(data, 0, "train")] == [0, 1, 2]
    assert max(window[-1] for window in windows(data, 0, "train")) == 6


def test_a_stride_leaves_windows_out(tmp_path):
    data = series(tmp_path, past=2, stride=3, test_fraction=0.5)
    starts = [w[0] for name in ("train", "test") for w in windows(data, 0, name)]
    assert starts == [0, 3, 6, 9]


@pytest.mark.parametrize("gap", ["an hour is absent", "a value is absent"])
def test_no_window_spans_a_gap(tmp_path, gap):
    """Rows 0 to 4 and 6 to 11 of client a; after a gap in time strides begin anew."""
    if gap == "an hour is absent":
        rows = [row for row in two() if row[:2] != ("a", 5)]
    else:
        rows = [(*row[:2], "", 0) if row[:2] == ("a", 5) else row for row in two()]
    data = series(tmp_path, rows, past=2, missing="drop", stride=2)
    starts = [w[0] for name in ("train", "test") for w in windows(data, 0, name)]
    assert starts == [0, 2, 6, 8]


def test_each_client_has_its_own_pace(tmp_path):
    """Client b has a row every three hours; client c has two rows, and a window needs three."""
    rows = [(who, 3 * hour if who == "b" else hour, *rest) for who, hour, *rest in two(6)]
    rows += [("c", hour, 0, 0) for hour in range(2)]
    with pytest.warns(UserWarning, match=parts("1 of 3 clients ~ 3 rows ~ first is c")):
        data = series(tmp_path, rows, past=2, time_column="hour")
    assert data.client_names == ("a", "b")
    assert [sum(size) for size in data.division.sizes.tolist()] == [4, 4]


def test_without_times_rows_are_in_order(tmp_path):
    data = series(tmp_path, two()[::-1], past=2, time_column=None)
    assert windows(data, 1, "train")[0] == [100, 101, 102]


def test_clients_that_hold_several_series_are_divided_by_time_too(tmp_path):
    """Of two windows for row 9 one is tested, so the other is left out."""
    options = {"time_column": None, "num_clients": 1, "partition": ByDomain()}
    data = series(tmp_path, two()[::-1], past=2, **options)
    tested = sorted(w[-1] % 100 for w in windows(data, 0, "test"))
    assert tested == [9, 10, 10, 11, 11]
    assert {w[-1] % 100 for w in windows(data, 0, "train")} == {*range(2, 9)}


def test_columns_are_standardised_by_the_rows_of_training_windows(tmp_path):
    """Training windows have rows 0 to 9 of both clients: mean 54.5, variance 8.25 + 50^2."""
    data = series(tmp_path, past=2, standardise="train")
    assert windows(series(tmp_path, past=2), 0, "train")[-1] == [7, 8, 9]
    deviation = np.sqrt(8.25 + 2500)
    last = data.split(0, "test").batch(torch.tensor([1]))
    assert last.x[0, :, 0].numpy() == pytest.approx((np.array([9, 10]) - 54.5) / deviation)
    assert last.y.tolist() == [[11]]
    assert data.task == Forecast(means=(54.5,), deviations=(pytest.approx(deviation),))


def test_test_rows_change_no_input_of_training(tmp_path):
    rows = [(*row[:2], 1e6, 1e6) if row[1] == 11 else row for row in two()]
    one, other = (series(tmp_path, given, standardise="train") for given in (two(), rows))
    assert windows(one, 0, "train") == windows(other, 0, "train")
    assert one.task == other.task


def test_scores_are_in_units_and_by_horizon():
    """Outputs 1, 0 with mean 10 and deviation 2: values 12, 10 for targets 11, 13."""
    task = Forecast(horizon=2, means=(10.0,), deviations=(2.0,))
    outputs, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[11.0, 13.0]])
    found = dict(zip(task.scores_better, task.scores(outputs, y).tolist(), strict=True))
    assert found["loss"] == pytest.approx((1 + 9) / 2)
    assert (found["mae"], found["mae_1"], found["mae_2"]) == pytest.approx((2, 1, 3))
    assert task.predictions(outputs).tolist() == [[12, 10]]
    assert task.loss(outputs, y).item() == pytest.approx((0.5**2 + 1.5**2) / 2)


def test_quantiles_of_several_numbers_are_scaled_each():
    """Two numbers with means 0 and 100 at two times, and two quantiles of each."""
    task = Forecast(quantiles=(0.4, 0.9), horizon=2, means=(0.0, 100.0), deviations=(1.0, 10.0))
    outputs = torch.tensor([[1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]])
    assert task.predictions(outputs).tolist() == [[1, 110, 3, 130]]
    found = dict(zip(task.scores_better, task.scores(outputs, torch.zeros(1, 4))[0:], strict=True))
    assert found["mae_1"].item() == pytest.approx((1 + 110) / 2)
    assert found["mae_2"].item() == pytest.approx((3 + 130) / 2)


def test_an_output_that_is_no_number_has_no_score():
    task = Forecast(horizon=2)
    for bad in (float("nan"), float("inf")):
        assert task.scores(torch.tensor([[bad, 0.0]]), torch.zeros(1, 2)).isnan().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"past": 12}, "load.csv: ~ 13 rows ~ past + horizon"),
        ({"features": ["load"]}, "'load' ~ target ~ feature"),
        ({"rows": [*two(), ("a", 3, 0, 0)]}, "line 26, column 'hour': '3' ~ two rows"),
        ({"rows": [*two(), ("a", 12, "", 0)]}, "line 26, column 'load': '' ~ missing"),
        ({"horizon": 0}, "horizon ~ at least 1 ~ 0"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=parts(message)):
        series(tmp_path, **options)


def test_a_command_trains_and_its_network_suits_the_task(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(
        f"""
loop: {{rounds: 1, name: x, progress: false}}
model: {{class_path: FedAvg, init_args: {{net: {{class_path: MLP}}}}}}
data:
  class_path: TimeSeries
  init_args:
    {{path: {table(tmp_path, two())}, target: [load, warm], client_column: who,
      time_column: hour, past: 3, horizon: 2}}
"""
    )
    assert main(["fit", "--config", "run.yaml"]) == 0
    (folder,) = (tmp_path / "runs/x").iterdir()
    summary = json.loads((folder / "summary.json").read_text())["summary"]
    assert "test/personal/mae_2/last" in summary
    assert main(["predict", "--config", "run.yaml", "--ckpt_path", "last"]) == 0
    header = (folder / "predictions/test/client_0.csv").read_text().splitlines()[0]
    assert header.split(",")[-1] == "prediction_3"


def business(folder, **options):
    """A client with rows on thirty business days, loads 0, 1, ..."""
    days = [f"{day:%Y-%m-%d}" for day in pd.bdate_range("2026-01-01", periods=30)]
    rows = [("a", day, number, 0) for number, day in enumerate(days)]
    return TimeSeries(table(folder, rows), "load", "who", 2, time_column="hour", **options)


def test_business_days_follow_each_other_by_their_calendar(tmp_path):
    """From Thursday on, five week ends lie within 30 days; windows of 3 rows lose 2 to each."""
    for calendar, count in (("all", 28 - 2 * 6), ("business", 28), ("rows", 28)):
        data = business(tmp_path, calendar=calendar)
        assert data.division.sizes.sum() <= count
        assert len(data.read()["y"]) == count
        lost = [doubt for doubt in data.reading.doubts if "week ends" in doubt]
        assert [says(one, "12 of 28 windows ~ calendar: business") for one in lost] == [True] * (
            calendar == "all"
        )
    with pytest.raises(ValueError, match=parts("calendar must be ~ all, business, rows ~ monday")):
        business(tmp_path, calendar="monday")
    with pytest.raises(ValueError, match=parts("calendar: business needs ~ dates")):
        series(tmp_path, calendar="business")


def test_the_hour_that_a_clock_repeats_is_explained(tmp_path):
    stamps = pd.date_range("2026-10-24", periods=48, freq="h", tz="Europe/Berlin")
    rows = [("a", f"{stamp:%Y-%m-%d %H:%M}", number, 0) for number, stamp in enumerate(stamps)]
    with pytest.raises(ValueError, match=parts("line 29 ~ two rows ~ clock repeats ~ UTC")):
        series(tmp_path, rows)
