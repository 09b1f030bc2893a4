"""The pictures: what is drawn, and that it is all on the page."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pfl.results.compare import compare
from pfl.results.files import RunError
from pfl.results.matrices import label_similarity, reported, similarity
from pfl.results.pictures import draw, write
from pfl.results.plots import clients, curves, data_size
from pfl.results.runs import RunFolder
from pfl.results.settings import group
from tests.helpers.messages import parts
from tests.results.folders import write_run

ACC = "test/personal/acc"


def settings_of(tmp_path, number, seeds=1, rounds=4, count=12, **options):
    rng = np.random.default_rng(0)
    runs = [
        write_run(
            tmp_path / f"{method}-{seed}",
            rng.uniform(0.2, 1, (rounds, count)).tolist(),
            method=f"Method{method}",
            seed=seed,
            config={"model": {"class_path": f"Method{method}"}},
            labels=rng.integers(0, 20, (count, 5)).tolist(),
            columns={"weight": rng.uniform(0.01, 0.1, (rounds, count)).tolist()},
            **options,
        )
        for method in range(number)
        for seed in range(seeds)
    ]
    return group([RunFolder.read(run) for run in runs])[0]


@pytest.mark.long
def test_the_same_run_gives_the_same_files(tmp_path):
    settings = settings_of(tmp_path, 1, seeds=2)
    for folder in ("a", "b"):
        files = write(draw(settings), tmp_path / folder, ("png", "svg"))
    assert {file.stem for file in files} == {
        "curves",
        "clients",
        "data_size",
        "weight",
        "similarity",
    }
    for file in files:
        assert file.read_bytes() == (tmp_path / "a" / file.name).read_bytes()


def test_curves_are_means_over_seeds_at_common_rounds(tmp_path):
    """Means of the clients 0.2 and 0.4 after round 2; of 0.6 and 1.0 after round 4.

    The standard error of two values is half their distance.
    """
    config = {"model": {"class_path": "FedAvg"}}
    runs = [
        write_run(tmp_path / "a", [[], [0.2], [0.3], [0.6]], seed=1, config=config),
        write_run(tmp_path / "b", [[], [0.4], [], [1.0]], seed=2, config=config),
    ]
    figure = curves(group([RunFolder.read(run) for run in runs])[0], ACC)
    rounds, moved, seconds = (axes.lines[0].get_xydata() for axes in figure.axes)
    np.testing.assert_allclose(rounds, [[2, 0.3], [4, 0.8]])
    np.testing.assert_allclose(moved[:, 0], [1000, 2000])
    np.testing.assert_allclose(seconds[:, 0], [5, 10])
    band = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (pytest.approx(0.2), pytest.approx(1))


def test_seeds_that_share_no_round(tmp_path):
    config = {"model": {"class_path": "FedAvg"}}
    runs = [
        write_run(tmp_path / "a", [[], [0.2]], seed=1, config=config),
        write_run(tmp_path / "b", [[0.4], [], []], seed=2, config=config),
    ]
    with pytest.raises(RunError, match=parts("same round")):
        curves(group([RunFolder.read(run) for run in runs])[0], ACC)


@pytest.mark.parametrize("at", ["last", "mean_last10"])
def test_the_worst_tenth_is_the_tables(tmp_path, at):
    """It is each run's and round's own: after round 2 the worst clients have 0.1 and 0.3."""
    config = {"model": {"class_path": "FedAvg"}}
    runs = [
        write_run(tmp_path / "1", [[0.2, 0.9], [0.1, 0.9]], seed=1, config=config),
        write_run(tmp_path / "2", [[0.9, 0.4], [0.9, 0.3]], seed=2, config=config),
    ]
    settings, _ = group([RunFolder.read(run) for run in runs])
    panel = clients(settings, ACC, at).axes[0]
    _, worst = (mark.get_offsets()[0, 0] for mark in panel.collections[-2:])
    (row,) = compare(settings, at=at).records
    assert worst == pytest.approx(row["test/personal/acc_worst10"])
    assert worst == pytest.approx({"last": 0.2, "mean_last10": 0.25}[at])


def test_of_the_common_test_set_no_client_has_a_share(tmp_path):
    settings = settings_of(tmp_path, 1)
    for picture in (clients, data_size):
        with pytest.raises(RunError, match=parts("test/pooled/acc ~ common test set")):
            picture(settings, "test/pooled/acc", "last")


def test_means_of_clients_of_like_size(tmp_path):
    """Fifteen clients make three groups, of sizes 10 to 50, 60 to 100 and 110 to 150."""
    run = write_run(tmp_path / "a", [[0.0] * 5 + [1.0] * 5 + [0.5] * 5])
    line = data_size(group([RunFolder.read(run)])[0], ACC, "last").axes[0].lines[0]
    np.testing.assert_allclose(line.get_xydata(), [[30, 0], [80, 1], [130, 0.5]])


def test_clients_of_equal_size_have_one_mean(tmp_path):
    """Ten of size 10 and five of size 20: two means, however the groups would be cut."""
    run = write_run(tmp_path / "a", [[0.0] * 5 + [1.0] * 5 + [0.3] * 5])
    settings = group([RunFolder.read(run)])[0]
    settings[0].runs[0].samples[:] = [10] * 10 + [20] * 5
    line = data_size(settings, ACC, "last").axes[0].lines[0]
    np.testing.assert_allclose(line.get_xydata(), [[10, 0.5], [20, 0.3]])


def test_a_map_of_weights_lists_clients_by_size_and_leaves_out_the_absent(tmp_path):
    run = write_run(
        tmp_path / "a",
        [[0.5, 0.5], [0.5, 0.5]],
        samples=[30, 20],
        columns={"weight": [[0.6, 0.4], [None, 1.0]]},
    )
    # A third client was never tested: nobody tells its size.
    partition = json.loads((run / "partition.json").read_text())
    (run / "partition.json").write_text(json.dumps({**partition, "num_clients": 3}))
    settings, _ = group([RunFolder.read(run)])
    drawn = reported(settings, "weight").axes[0].collections[0].get_array()
    assert drawn.tolist() == [[0.4, 1.0], [0.6, None]]
    with pytest.raises(RunError, match=parts("'trace'")):
        reported(settings, "trace")


def test_similarity_of_labels(tmp_path):
    """(3, 4) and (4, 3): 24 / 25. A client without data is like nobody."""
    found = label_similarity(np.array([[3.0, 4], [4, 3], [0, 0]]))
    np.testing.assert_allclose(found, [[1, 0.96, 0], [0.96, 1, 0], [0, 0, 0]])
    run = write_run(tmp_path / "a", [[0.5, 0.5, 0.5]], labels=[[1, 0], [0, 1], [1, 0]])
    figure = similarity(group([RunFolder.read(run)])[0])
    order = [int(label.get_text()) for label in figure.axes[0].get_xticklabels()]
    assert sorted(order) == [0, 1, 2]
    assert order[1] != 1
    bare = write_run(tmp_path / "b", [[0.5]])
    with pytest.raises(RunError, match="no label counts"):
        similarity(group([RunFolder.read(bare)])[0])


def test_every_picture_is_drawn_or_refused(real, tmp_path):
    settings, _ = group([RunFolder.read(run.folder) for run in real.values()])
    drawn = draw(settings)
    assert [picture.name for picture in drawn] == [
        *("curves", "clients", "data_size", "similarity", "reliability", "weight", "trace")
    ]
    assert [picture.name for picture in drawn if picture.figure is None] == ["reliability"]
    for picture in drawn:
        assert (picture.figure is None) == bool(picture.refusal)
