"""A method that breaks a promise is told which one, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_modules import DualLoRA, FedOTP, FedSALoRA, FedSimSup, FFALoRA, FLoRA
from pfl.core.server import Server
from pfl.testing import PROMISES, BrokenPromiseError, Subject, check_method, mlp, normed, suited
from pfl.testing.promise import RaisedError, lacking
from pfl.testing.toy import blobs
from tests.engines.agreement import Logs
from tests.helpers.messages import parts
from tests.testing import broken
from tests.testing import broken_rounds as rounds

ROOT = Path(__file__).parents[2]
BY_NAME = {promise.name: promise for promise in PROMISES}
# What one promise finds in a method.
FINDINGS = [
    ("builds", broken.IsAPlainModule, "IsAPlainModule is not a lightning_modules.ClientModule"),
    ("builds", broken.GivesFeatures, "logits of shape (2, 3), got (2, 6)"),
    ("refuses_unknown_arguments", broken.TakesAnything, "epoch_count=3 is accepted"),
    ("refuses_wrong_values", broken.GuessesWords, "buffers='so' is accepted"),
    ("patterns_match", broken.KeepsNothingOfThatName, "'net.haed.*' of kept"),
    (
        "patterns_match",
        broken.KeepsInVain,
        "'net.head.bias' is both shared and kept, but the kept ",
    ),
    ("fits_without_federation", broken.Stays, "after 15 epochs"),
    ("plans_are_declarations", broken.ReadsInAdapt, "adapt() reads the value of the entry 'visits"),
    ("plans_are_declarations", broken.PlansForOneClient, "plan() declares something else"),
    ("streams_are_left_alone", broken.DrawsInObjective, "of phase 'local' draws from torch's"),
    ("streams_are_left_alone", broken.DrawsInReceive, "receive draws from NumPy's"),
    ("streams_are_left_alone", broken.DrawsOnTheServer, "finish draws from Python's"),
    ("functions_are_pure", broken.DrawsFromNumpyInObjective, "'ce' when called again"),
    ("functions_are_pure", broken.MutatesInObjective, "changes the entry 'visits'"),
    ("functions_are_pure", broken.CountsInObjective, "changes the attribute 'calls'"),
    ("functions_are_pure", broken.CollectsInObjective, "changes the variable 'seen'"),
    ("functions_are_pure", broken.ShiftsItsBatch, "changes its argument '0.x'"),
    ("padding_does_not_count", broken.ForgetsWeight, "gives a different 'ce' on a padded batch"),
    ("padding_does_not_count", broken.ForgetsWeightInStatistic, "statistic of pass 'centre'"),
    ("upload_changes_nothing", rounds.UploadsAndForgets, "upload changes the entry 'visits'"),
    ("uploads_are_declared", rounds.SendsHead, "'net.head.bias', which 'shared' does not match"),
    ("uploads_are_declared", rounds.SendsMore, "sends the extra 'count', missing in 'extra'"),
    ("uploads_are_declared", rounds.SendsFlat, "float32[30] instead of float32[6, 5]"),
    ("uploads_are_declared", rounds.SendsNothing, "upload returns NoneType, not an Upload"),
    ("bytes_follow_the_formula", broken.Method, "the broadcast has 144 bytes, the formula 4"),
    ("copies", rounds.TakesTheBroadcastItself, "receive leaves the entry 'net.backbone.0.weight"),
    ("copies", rounds.SendsItsOwnWeights, "in the storage of the module's 'net.backbone.0.weight'"),
    ("copies", rounds.SendsTheBroadcastBack, "in the storage of the broadcast's 'shared.net.back"),
    ("losses_count", broken.HasItsOwnLoss, "client 0 learns the same: every loss of targets must"),
    (
        "targets_count_in_the_loss_alone",
        broken.WeighsByItsOwnLoss,
        "'kept.visits' of client 0 follows the targets past a loss that ignores them",
    ),
    (
        "targets_count_in_the_loss_alone",
        broken.CountsClasses,
        "no loss is involved, as where a pass counts classes, the method works on classes and "
        'declares needs = ("classes",)',
    ),
    (
        "broadcasts_are_read",
        rounds.SendsUnread,
        "if 'banks', which the server sends in 'extra', has other values: nobody reads it",
    ),
    ("clients_change_nothing_but_themselves", rounds.WritesToTheBroadcast, "training client 0"),
    (
        "servers_are_pure",
        rounds.RemembersOnTheServer,
        "aggregate gives a different 'shared.net.back",
    ),
    ("welcome_is_pure", rounds.DrawsForNewcomers, "welcome gives another '0.shared.net.back"),
    ("welcome_is_pure", rounds.DrawsForNobody, "welcome draws from a global random stream"),
    ("welcome_works_on_any_device", rounds.WelcomesOnTheHost, "on device, (6,) on cpu ("),
    (
        "servers_are_pure",
        rounds.ClipsUploads,
        "aggregate changes '1.0.shared.net.backbone.0.bias' of its arguments",
    ),
    ("clients_are_independent", rounds.FollowsThePrevious, "different 'kept.visits'"),
    ("nothing_is_forgotten", rounds.WarmsUp, "the int 'taken' changes while WarmsUp"),
    ("personal_is_global_where_said", rounds.SaysItIsGlobal, "of client 0 differs from that"),
    ("tests_repeat", rounds.CountsTests, "of client 0 differs the second time"),
    (
        "the_server_holds_nothing_kept",
        rounds.KeepsOnTheServer,
        "'visits' is also shared with the server",
    ),
    ("resumes", rounds.RemembersOnTheSide, "after three rounds"),
    ("evaluation_changes_nothing", rounds.CountsTests, "if the run is tested after each round"),
    ("small_clients_run", rounds.Standardises, "client 1: the loss or the weights are not finite"),
    ("empty_clients_are_left_out", rounds.DividesByClients, "client 0: the loss or the"),
    (
        "empty_rounds_change_nothing",
        rounds.FadesWithoutUploads,
        "the server changes 'net.backbone.0.weight' without uploads",
    ),
    ("nan_ends_the_run", rounds.SwallowsNan, "the run continues"),
    ("nan_reaches_nobody", rounds.SwallowsNan, "client 1 takes part nevertheless"),
    ("nan_reaches_nobody", rounds.AwaitsEveryClient, "entry 'biases' is not finite"),
    (
        "members_are_alone",
        rounds.WelcomesForGood,
        "differs from that of a federation of its members alone",
    ),
    (
        "newcomers_change_nothing",
        rounds.CountsNewcomers,
        "of an unseen client differs without the data of the other one",
    ),
    (
        "newcomers_change_nothing",
        rounds.RemembersLabels,
        "depends on the labels of the client's training data",
    ),
    ("threads_agree", rounds.RemembersOnTheSide, "differs"),
    (
        "stacked_agrees",
        rounds.ScalesBySamples,
        "ScalesBySamples gives different numbers when stacked",
    ),
    ("works_on_any_device", broken.WeighsOnTheHost, "(4, 5) on device, (5,) on cpu ("),
    ("works_on_any_device", broken.AddsOnTheHost, "add: tensors on two"),
    ("works_on_any_device", broken.UsesNumpy, "take .cpu() first ("),
]


def test_the_first_broken_promise_says_what_is_wrong():
    with pytest.raises(BrokenPromiseError) as found:
        check_method(broken.MutatesInObjective)
    assert str(found.value) == (
        "MutatesInObjective breaks the promise that objectives, statistics and the other functions "
        "of a plan are pure: objective of phase 'local' changes the entry 'visits'"
    )


def test_a_client_that_seeks_itself_by_its_number_in_the_data_fails():
    with pytest.raises(RaisedError, match="IndexError: index 7 is out of bounds"):
        BY_NAME["members_are_alone"].hold(Subject(rounds.LooksForItself))


@pytest.mark.parametrize(
    ("name", "method", "finding"), FINDINGS, ids=[f"{n}-{m.__name__}" for n, m, _ in FINDINGS]
)
def test_a_promise_finds_a_method_that_breaks_it(name, method, finding):
    subject = Subject(method, floats=lambda module, info: (1, 1))
    # On a busy machine one thread may run all clients; then threads are as one after another.
    turns = 5 if name == "threads_agree" else 1
    with pytest.raises(BrokenPromiseError) as found:
        [BY_NAME[name].hold(subject) for _ in range(turns)]
    assert finding in str(found.value)
    assert not isinstance(found.value, RaisedError)


class ServerFails(broken.Method):
    """Its server has a mistake that has nothing to do with any promise."""

    def server(self):
        class Mine(Server):
            def finish(self, state, folded):
                return {}["net.haed"]

        return Mine()


@pytest.mark.parametrize("name", ["functions_are_pure", "servers_are_pure", "resumes"])
def test_an_error_of_the_method_is_no_broken_promise(name):
    """The file and the line are named."""
    with pytest.raises(RaisedError) as found:
        BY_NAME[name].hold(Subject(ServerFails))
    told = str(found.value)
    assert told.startswith("ServerFails raises an error in the check that ")
    assert "KeyError: 'net.haed' (" in told
    assert "test_check.py, line " in told
    assert "breaks" not in told


def test_every_promise_can_be_broken():
    assert {name for name, _, _ in FINDINGS} == set(BY_NAME)


@pytest.mark.long
@pytest.mark.parametrize("method", [broken.Method, broken.DropsOut, rounds.DrawsAtTheStart])
def test_a_method_that_keeps_all_passes(method):
    check_method(method, floats=lambda module, info: (36, 36))


@pytest.mark.parametrize("method", [FedSALoRA, FFALoRA, FLoRA, DualLoRA, FedOTP])
def test_the_small_network_has_what_a_method_needs(method):
    """An adapted network, or towers, although the toy network is neither; once is enough."""
    subject = Subject(method)
    assert BY_NAME["builds"].hold(subject)
    assert lacking(method, mlp())
    net = suited(method, normed())
    assert not lacking(method, net)
    assert suited(method, net) is net


def test_a_method_with_arguments_of_its_own_needs_to_be_built():
    with pytest.raises(BrokenPromiseError, match=parts("FedSimSup ~ TypeError: ~ 'supervisor'")):
        check_method(FedSimSup)
    subject = Subject(FedSimSup, lambda net, **options: FedSimSup(net, mlp(), **options))
    assert BY_NAME["tests_repeat"].hold(subject)


@pytest.mark.parametrize("name", ["patterns_match", "the_server_holds_nothing_kept", "resumes"])
def test_an_entry_may_be_shared_and_kept(name):
    def build(net, **options):
        return FedSimSup(net, mlp(), eval_inter="last_local", **options)

    assert BY_NAME[name].hold(Subject(FedSimSup, build))


def test_every_promise_stands_on_its_page():
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    stated = [line.strip() for line in text.splitlines() if line.startswith("  - ")]
    assert len(stated) == len(PROMISES)
    for promise, line in zip(PROMISES, stated, strict=True):
        assert line.startswith(f"- {promise.sentence}")


@pytest.mark.parametrize("name", ["fits_without_federation", "functions_are_pure"])
def test_logging_breaks_no_promise(name):
    assert BY_NAME[name].hold(Subject(Logs))


def test_clients_of_the_toy_data_differ_and_have_samples_of_several_classes():
    data = blobs((20, 20, 20))
    for client in range(3):
        counts = data.split(client, "train").targets.bincount(minlength=3)
        assert counts[(client + 1) % 3] >= 10
        assert (counts > 0).sum() > 1
