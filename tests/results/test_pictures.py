"""The pictures: what is drawn, and that it is all on the page."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import matplotlib
import numpy as np
import pytest

from pfl.results.compare import compare
from pfl.results.files import RunError
from pfl.results.matrices import label_similarity, reported, similarity
from pfl.results.pictures import draw, write
from pfl.results.plots import clients, curves, data_size, differences
from pfl.results.runs import RunFolder
from pfl.results.settings import group
from pfl.results.style import Look, styled, wrapped
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


@pytest.mark.parametrize(("number", "seeds"), [(1, 1), (8, 2)])
def test_nothing_leaves_the_page_or_overlaps_the_legend(tmp_path, number, seeds):
    settings = settings_of(tmp_path, number, seeds)
    names = ("curves", "clients", "data_size", "weight", "similarity")
    for picture in draw(settings, names):
        figure = picture.figure
        with styled():
            figure.draw_without_rendering()
            box, page = figure.get_tightbbox(), figure.bbox_inches
        assert box.x0 >= -0.01
        assert box.y0 >= -0.01
        assert box.x1 <= page.x1 + 0.01, picture.name
        assert box.y1 <= page.y1 + 0.01, picture.name
        for legend in figure.legends:
            for axes in figure.axes:
                assert not legend.get_window_extent().overlaps(axes.get_window_extent())


def test_labels_that_are_wider_than_the_page_are_wrapped_in_the_legend(tmp_path):
    settings = [
        replace(one, label=", ".join(f"setting_{key}={one.label}" for key in range(9)))
        for one in settings_of(tmp_path, 3)
    ]
    for picture in draw(settings, ("curves", "data_size")):
        with styled():
            picture.figure.draw_without_rendering()
            for legend in picture.figure.legends:
                box = legend.get_window_extent()
                assert box.x0 >= 0
                assert box.y1 <= picture.figure.bbox.y1
                assert box.x1 <= picture.figure.bbox.x1
                for axes in picture.figure.axes:
                    assert not box.overlaps(axes.get_window_extent())


def test_labels_of_rows_beside_boxes_do_not_touch(tmp_path):
    settings = [
        replace(one, label=", ".join(f"setting_{key}={one.label}" for key in range(4)))
        for one in settings_of(tmp_path, 4)
    ]
    with styled():
        figure = clients(settings, ACC, "last")
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in figure.axes[0].get_yticklabels()]
    assert all(above.y0 > below.y1 for above, below in pairwise(boxes))


@pytest.mark.parametrize("factor", [8.5, 60, 900])
def test_labels_of_a_logarithmic_axis_do_not_touch(tmp_path, factor):
    settings = settings_of(tmp_path, 2)
    for number, setting in enumerate(settings):
        (run,) = setting.runs
        run.metrics["time/train"] = (
            np.diff(np.linspace(0.23, 0.24, 4), prepend=0) * (1, factor)[number]
        )
        run.metrics["time/aggregate"] = 0.0
    with styled():
        figure = curves(settings, ACC)
        figure.draw_without_rendering()
        panel = figure.axes[2]
        ticks = [*panel.get_xticklabels(), *panel.get_xticklabels(minor=True)]
        boxes = [text.get_window_extent() for text in ticks if _is_seen(text, panel)]
    assert panel.get_xscale() == "log"
    assert len(boxes) >= 2
    assert all(
        left.x1 < right.x0 for left, right in pairwise(sorted(boxes, key=lambda box: box.x0))
    )


def test_one_picture_more_does_not_change_anybody_elses(tmp_path):
    before = dict(matplotlib.rcParams)
    settings = settings_of(tmp_path, 2)
    write(draw(settings, ("curves",)), tmp_path / "plots", ("png", "svg"))
    assert dict(matplotlib.rcParams) == before


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


def test_curves_show_simulated_seconds_where_every_run_has_them(tmp_path):
    for name, simulated in (("a", True), ("b", False)):
        run = write_run(tmp_path / name, [[0.2], [0.4]], config={"model": {"class_path": "FedAvg"}})
        if simulated:
            first, *rows = (run / "metrics.csv").read_text(encoding="utf-8").splitlines()
            lines = [
                f"{first},comm/seconds_total",
                *(f"{r},{7 * i}" for i, r in enumerate(rows, 1)),
            ]
            (run / "metrics.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    one, other = (RunFolder.read(tmp_path / name) for name in ("a", "b"))
    panel = curves(group([one])[0], ACC).axes[2]
    assert panel.get_xlabel() == "simulated"
    np.testing.assert_allclose(panel.lines[0].get_xdata(), [7, 14])
    panel = curves(group([one, other])[0], ACC).axes[2]
    assert panel.get_xlabel() == "training and aggregation"


def test_seeds_that_share_no_round(tmp_path):
    config = {"model": {"class_path": "FedAvg"}}
    runs = [
        write_run(tmp_path / "a", [[], [0.2]], seed=1, config=config),
        write_run(tmp_path / "b", [[0.4], [], []], seed=2, config=config),
    ]
    with pytest.raises(RunError, match=parts("same round")):
        curves(group([RunFolder.read(run) for run in runs])[0], ACC)


@pytest.mark.parametrize(("factor", "scale"), [(1, "log"), (0, "symlog")])
def test_costs_that_differ_widely_share_a_logarithmic_axis_also_with_none(tmp_path, factor, scale):
    settings = settings_of(tmp_path, 3)
    settings[0].runs[0].metrics["comm/bytes_total"] *= factor
    settings[1].runs[0].metrics["comm/bytes_total"] *= 100
    scales = [axes.get_xscale() for axes in curves(settings, ACC).axes]
    assert scales == ["linear", scale, "linear"]


def test_a_run_that_is_not_finished_says_so(tmp_path):
    figure = clients(settings_of(tmp_path, 1, planned=9), ACC, "last")
    assert "unfinished" in figure.axes[0].get_yticklabels()[0].get_text()


def test_marks_of_mean_and_worst_tenth(tmp_path):
    """Of eleven clients the worst tenth are two: 0 and 0.1, mean 0.05."""
    run = write_run(tmp_path / "a", [[number / 10 for number in range(11)]])
    panel = clients(group([RunFolder.read(run)])[0], ACC, "last").axes[0]
    mean, worst = (mark.get_offsets()[0, 0] for mark in panel.collections[-2:])
    assert (mean, worst) == (pytest.approx(0.5), pytest.approx(0.05))


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


def test_only_accuracies_have_a_worst_tenth(tmp_path):
    run = RunFolder.read(write_run(tmp_path / "a", [[0.5, 0.6]]))
    for table in (run.metrics, run.filled, run.clients):
        table["test/personal/loss"] = table["test/personal/acc"]
    figure = clients(group([run])[0], "test/personal/loss", "last")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["mean"]


def test_ticks_show_the_digits_that_they_have(tmp_path):
    run = write_run(tmp_path / "a", [[0.875], [0.975]])
    figure = curves(group([RunFolder.read(run)])[0], ACC)
    axis = figure.axes[0].yaxis
    texts = axis.get_major_formatter().format_ticks([0.875, 0.9, 0.925, 1, 1.025])
    assert texts == ["87.5%", "90%", "92.5%", "100%", ""]


def test_labels_of_neighbouring_panels_keep_apart(tmp_path):
    """By three letters at least, however long the numbers at the edges are."""
    settings = settings_of(tmp_path, 2)
    for setting in settings:
        setting.runs[0].metrics["comm/bytes_total"] *= 200_000
    with styled():
        figure = curves(settings, ACC)
        figure.draw_without_rendering()
        gap = 3 * figure.dpi / 15
        for left, right in pairwise(figure.axes):
            boxes = [
                [t.get_window_extent() for t in axes.get_xticklabels() if _is_seen(t, axes)]
                for axes in (left, right)
            ]
            assert max(box.x1 for box in boxes[0]) + gap < min(box.x0 for box in boxes[1])


def _is_seen(text, axes):
    low, high = axes.get_xlim()
    return bool(text.get_text()) and low <= text.get_position()[0] <= high


def test_of_a_summary_clients_show_what_it_sums_up(tmp_path):
    """The rounds are those of the summary: its best one here."""
    run = write_run(tmp_path / "a", [[0.2, 0.6], [0.1, 0.9]])
    settings = group([RunFolder.read(run)])[0]
    panel = clients(settings, f"{ACC}_worst10", "best_on_test").axes[0]
    assert panel.get_xlabel() == "test accuracy of a client (best round, chosen on the test data)"
    mean, worst = (mark.get_offsets()[0, 0] for mark in panel.collections[-2:])
    assert (mean, worst) == (pytest.approx(0.4), pytest.approx(0.2))


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


def test_few_clients_are_dots_and_no_line(tmp_path):
    run = write_run(tmp_path / "a", [[0.1 * number for number in range(10)]])
    panel = data_size(group([RunFolder.read(run)])[0], ACC, "last").axes[0]
    assert len(panel.lines) == 0
    assert len(panel.collections[0].get_offsets()) == 10


def test_no_client_has_half_a_sample(tmp_path):
    run = write_run(tmp_path / "a", [[0.5, 0.7]], samples=[24, 24])
    panel = data_size(group([RunFolder.read(run)])[0], ACC, "last").axes[0]
    assert all(tick == round(tick) for tick in panel.get_xticks())


def test_a_map_of_weights_lists_clients_by_size_and_leaves_out_the_absent(tmp_path):
    run = write_run(
        tmp_path / "a",
        [[0.5, 0.5], [0.5, 0.5]],
        samples=[30, 20],
        columns={"weight": [[0.6, 0.4], [None, 1.0]]},
    )
    settings, _ = group([RunFolder.read(run)])
    drawn = reported(settings, "weight").axes[0].collections[0].get_array()
    assert drawn.tolist() == [[0.4, 1.0], [0.6, None]]
    with pytest.raises(RunError, match=parts("'trace'")):
        reported(settings, "trace")


def test_a_map_of_weights_leaves_out_clients_that_were_never_tested(tmp_path):
    """The third of these three chooses the epochs of tuning, say: nobody tells its size."""
    run = write_run(
        tmp_path / "a", [[0.5, 0.5]], samples=[30, 20], columns={"weight": [[0.6, 0.4]]}
    )
    partition = json.loads((run / "partition.json").read_text())
    (run / "partition.json").write_text(json.dumps({**partition, "num_clients": 3}))
    panel = reported(group([RunFolder.read(run)])[0], "weight").axes[0]
    assert panel.collections[0].get_array().tolist() == [[0.4], [0.6]]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["20", "30"]


def test_the_lowest_map_of_each_column_has_the_label_of_the_rounds(tmp_path):
    """Five maps: four above, one below the first."""
    axes = reported(settings_of(tmp_path, 5), "weight").axes[:5]
    assert [panel.get_xlabel() for panel in axes] == ["", *["round"] * 4]


def test_what_a_server_reports_is_called_what_it_declares(tmp_path, real):
    """A run that does not tell, as an earlier version wrote it, has the name of its column."""
    declared = "trace of Fisher information"
    table = {"trace": [[0.6, 0.4]]}
    plain = write_run(tmp_path / "a", [[0.5, 0.5]], columns=table)
    for folder, caption in ((real["FedAS"].folder, declared), (plain, "trace")):
        settings, _ = group([RunFolder.read(folder)])
        (picture,) = draw(settings, ["trace"])
        assert picture.figure.axes[-1].get_ylabel() == caption
        assert picture.caption.startswith(f"T{caption[1:]} of each client")


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


def test_of_many_clients_some_are_named(tmp_path):
    """Of 70 clients every third: 24, more than numbers have room without a turn."""
    counts = np.random.default_rng(0).integers(0, 20, (70, 5)).tolist()
    run = write_run(tmp_path / "a", [[0.5] * 70], labels=counts)
    panel = similarity(group([RunFolder.read(run)])[0]).axes[0]
    assert panel.get_xticks().tolist() == list(range(0, 70, 3))
    columns, rows = panel.get_xticklabels(), panel.get_yticklabels()
    assert [text.get_text() for text in columns] == [text.get_text() for text in rows]
    assert [texts[0].get_rotation() for texts in (columns, rows)] == [90, 0]


def test_one_client_and_one_round(tmp_path):
    run = write_run(tmp_path / "a", [[0.5]], labels=[[3, 4]], columns={"weight": [[1.0]]})
    settings, _ = group([RunFolder.read(run)])
    assert len(write(draw(settings), tmp_path / "plots")) == 5
    for picture in draw(settings, ("curves", "weight")):
        axis = picture.figure.axes[0].xaxis
        assert [tick for tick in axis.get_majorticklocs() if 0.5 < tick < 1.5] == [1]


def test_every_picture_is_drawn_or_refused(real, tmp_path):
    settings, _ = group([RunFolder.read(run.folder) for run in real.values()])
    drawn = draw(settings)
    assert [picture.name for picture in drawn] == [
        *("curves", "clients", "data_size", "weight", "trace", "similarity", "reliability")
    ]
    assert [picture.name for picture in drawn if picture.figure is None] == ["reliability"]
    for picture in drawn:
        assert (picture.figure is None) == bool(picture.refusal)


def test_forty_settings_look_different():
    assert (
        len({(look.color, str(look.linestyle), look.marker) for look in map(Look.of, range(40))})
        == 40
    )


def test_labels_are_wrapped_at_words():
    assert wrapped("FedAS, align_lr=0.001", 1) == "FedAS,\nalign_lr=0.001"


def test_labels_without_spaces_are_broken_after_their_signs():
    assert wrapped("align_optimizer.weight_decay=0.0001", 1.2) == (
        "align_optimizer.\nweight_decay=\n0.0001"
    )


def test_differences_are_from_the_mean_of_the_settings(tmp_path):
    """0.5 and 0.7 lie 0.1 below and above their mean, and are written beside their bars."""
    runs = [
        write_run(tmp_path / str(n), [[value, value]], config={"loop": {"rounds": n}})
        for n, value in enumerate((0.5, 0.7))
    ]
    settings, _ = group([RunFolder.read(run) for run in runs])
    (panel,) = differences(settings, ACC, "last").axes
    assert [bar.get_height() for bar in panel.patches] == pytest.approx([-0.1, 0.1])
    assert [text.get_text() for text in panel.texts] == ["50.00", "70.00"]


def test_differences_of_small_errors_are_seen_and_of_no_number_refused(tmp_path):
    """0.0002 and 0.0004: a bar is as high as its share of the page, whatever the score's size."""
    values = (0.0002, 0.0004, float("nan"))
    settings, _ = group(
        [
            RunFolder.read(write_run(tmp_path / str(n), [[value]], method=f"M{n}", score="loss"))
            for n, value in enumerate(values)
        ]
    )
    metric = "test/personal/loss"
    (panel,) = differences(settings[:2], metric, "last").axes
    assert panel.patches[1].get_height() / panel.get_ylim()[1] == pytest.approx(1 / 1.35)
    assert [text.get_text() for text in panel.texts] == ["0.0002", "0.0004"]
    (picture,) = draw(settings, ["differences"], metric)
    assert picture.refusal == f"{metric} of M2 is not a number: there is no mean of all"


def test_a_column_that_is_about_no_model_names_none(tmp_path):
    settings = settings_of(tmp_path, 1)
    assert curves(settings, ACC).axes[0].get_ylabel() == "test accuracy\n(personal models)"
    assert curves(settings, "comm/bytes_up").axes[0].get_ylabel() == "comm/bytes_up"
