"""FederatedLoop, with which a user runs an experiment."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException

from pfl.callbacks import foreign
from pfl.callbacks.checkpoint import Checkpoint
from pfl.callbacks.interruption import interrupt
from pfl.callbacks.lightning_logger import LightningLogger
from pfl.callbacks.progress import ProgressBar
from pfl.callbacks.records import Records
from pfl.core import devices as core_devices
from pfl.core import export
from pfl.core.checks import at_least_one, finite, not_negative, one_of, positive
from pfl.core.data import FederatedData
from pfl.core.held_out import everyone, members
from pfl.core.types import EvaluationPoint, Result, RoundResult, Split
from pfl.engines.base import Engine
from pfl.engines.named import EngineName, make_engine
from pfl.federation import soundness
from pfl.federation.cost import Cost
from pfl.federation.described import described
from pfl.federation.prepare import prepared
from pfl.federation.resume import Wanted, beside, find_checkpoint
from pfl.federation.rounds import Federation
from pfl.federation.run import Callback, Run, load_states
from pfl.federation.sampling import Sampler, UniformSampler
from pfl.passage.coding import Codecs
from pfl.passage.privacy import Privacy
from pfl.training import client_round

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger
    from torch import Tensor

    from pfl.core.client import ClientModule

Precision: TypeAlias = Literal["32-true", "64-true", "bf16-mixed", "16-mixed"]


class FederatedLoop:
    """Runs a federation: any method, any data, any engine.

    Example::

        loop = FederatedLoop(rounds=20, sampler=UniformSampler(0.5))
        data = CIFAR10(num_clients=20, partition=Dirichlet(0.1), download=True)
        run = loop.fit(FedPer(CNN2(10)), data)
        print(run.summary["test/personal/acc/last"])

    Args:
        rounds: Communication rounds, T.
        sampler: Draws the clients that train, and those that upload, in each round.
        engine: Runs the clients of a round; an object or a name. ``auto`` chooses by device,
            method, network and client sizes, and the run's header shows the choice.
        workers: For an engine given by name: the number of cores for ``auto``, of threads for
            ``threads``, of actors for ``ray``, of sites asked at a time for ``loopback``; ``None``
            takes what is free, shared with other runs.
        evaluate_every: Rounds from one test of the models to the next; the last round is always
            tested.
        evaluate_from: Round of the first test; ``None`` is ``evaluate_every``.
        evaluate_clients: Number of clients to test, drawn once for the whole run from those with
            test data (``evaluated_clients`` in the records). The planned last round tests all of
            them in any case; ``None`` always does.
        evaluate_at: Points at which personalised models are tested; ``None`` takes the method's
            own. The first gives ``test/personal/...``, further ones ``test/personal_<point>/...``.
        unseen_every: Rounds from one test of the clients that are held out (``data.unseen``) to the
            next; they always join after the planned last round.
        join_rounds: Local rounds of a client that joins, K, by the method's own plan.
        tune_epochs: Largest number of epochs of the baseline that tunes all entries by SGD.
        accelerator: As in Lightning.
        devices: One device, as in Lightning; how a run is spread over workers is the engine's task.
        precision: As in Lightning: ``32-true``, ``64-true``, ``bf16-mixed``, ``16-mixed``.
        gradient_clip_val: Largest gradient norm of a client's step; ``None`` does not clip.
        codec: How messages are encoded; ``None`` sends tensors as they are, and counts their bytes.
        cost: The clients' bandwidths and speeds, from which each round's simulated seconds follow.
        privacy: Makes the run differentially private, with these settings; ``None`` does not.
        on_nonfinite: ``stop`` ends the run when a client's loss or weights are not finite; ``skip``
            discards what that client did in the round (its kept state stays, it uploads nothing)
            and continues.
        callbacks: Called with the result of each round.
        loggers: Lightning loggers; each is called once a round.
        default_root_dir: Folder in which each run gets its own, ``<name>/<time>``; ``None`` writes
            nothing.
        name: Name of the experiment, a path below ``default_root_dir``; ``None`` derives it from
            the method and the data.
        checkpoint_every: Rounds from one checkpoint to the next; the last round is always saved.
        kept_memory: Gigabytes of CPU memory for what clients keep from round to round, and the
            same again for models that a server holds for each client. The rest lies in files
            beside the runs, or in the system's temporary folder. ``None`` keeps everything on the
            device.
        progress: Show a progress bar and the closing table.
        seed: Seed of every random choice. The network's initial weights are those of the given
            module.

    Raises:
        ValueError: A number is out of its range, a word is not known, or ``name`` leads out of
            ``default_root_dir``.
        TypeError: A callback is not a :class:`pfl.federation.run.Callback`.
    """

    def __init__(
        self,
        rounds: int = 10,
        sampler: Sampler = UniformSampler(),  # noqa: B008 (frozen)
        engine: Engine | EngineName = "auto",
        workers: int | None = None,
        evaluate_every: int = 1,
        evaluate_from: int | None = None,
        evaluate_clients: int | None = None,
        evaluate_at: list[EvaluationPoint] | None = None,
        unseen_every: int | None = None,
        join_rounds: int = 5,
        tune_epochs: int = 20,
        accelerator: str = "auto",
        devices: int | str = 1,
        precision: Precision = "32-true",
        gradient_clip_val: float | None = None,
        codec: Codecs | None = None,
        cost: Cost | None = None,
        privacy: Privacy | None = None,
        on_nonfinite: Literal["stop", "skip"] = "stop",
        callbacks: list[Callback] | None = None,
        loggers: list[Logger] | None = None,
        default_root_dir: str | None = None,
        name: str | None = None,
        checkpoint_every: int = 10,
        kept_memory: float | None = None,
        progress: bool = True,
        seed: int = 42,
    ) -> None:
        self.given = {name: value for name, value in locals().items() if name != "self"}
        at_least_one(rounds=rounds, workers=workers, checkpoint_every=checkpoint_every)
        at_least_one(evaluate_every=evaluate_every, evaluate_from=evaluate_from)
        at_least_one(evaluate_clients=evaluate_clients, unseen_every=unseen_every)
        positive(gradient_clip_val=gradient_clip_val)
        not_negative(kept_memory=kept_memory, join_rounds=join_rounds, tune_epochs=tune_epochs)
        finite(kept_memory=kept_memory)
        one_of("on_nonfinite", on_nonfinite, ("stop", "skip"))
        for point in evaluate_at or ():
            one_of("each of evaluate_at", point, get_args(EvaluationPoint))
        if name is not None and (
            Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name
        ):
            raise ValueError(f"name must be a path below default_root_dir, got {name!r}")
        self.rounds = rounds
        self.sampler = sampler
        if workers is not None and not isinstance(engine, str):
            raise ValueError(
                f"workers={workers} needs an engine given by name; pass it to the engine itself"
            )
        self.engine = make_engine(engine, workers) if isinstance(engine, str) else engine
        self.evaluate_every = evaluate_every
        self.evaluate_from = evaluate_from
        self.evaluate_clients = evaluate_clients
        self.evaluate_at = evaluate_at
        self.unseen_every = unseen_every
        self.join_rounds = join_rounds
        self.tune_epochs = tune_epochs
        self.gradient_clip_val = gradient_clip_val
        self.codec = codec
        self.cost = cost
        self.privacy = privacy
        self.on_nonfinite: Literal["stop", "skip"] = on_nonfinite
        self.default_root_dir = default_root_dir
        self.name = name
        self.kept_memory = kept_memory
        self.seed = seed
        self.fabric = _fabric(accelerator, devices, precision)
        for callback in callbacks or ():
            if not isinstance(callback, Callback):  # such as one of Lightning's
                raise TypeError(f"callbacks: {foreign.refusal(type(callback).__name__)}")
        self.callbacks: list[Callback] = [*(callbacks or []), *map(LightningLogger, loggers or [])]
        if default_root_dir is not None:
            # Records come first: if another callback fails, a resume drops rows beyond the
            # checkpoint, and none is missing.
            self.callbacks = [Records(), *self.callbacks, Checkpoint(checkpoint_every)]
        if progress:
            self.callbacks.append(ProgressBar())

    def fit(
        self,
        module: ClientModule,
        data: FederatedData,
        ckpt_path: str | None = None,
        config: str | None = None,
    ) -> Run:
        """Train the federation and return the finished run.

        Args:
            module: The method, with its network's initial weights.
            data: The federation's data.
            ckpt_path: What to resume from: a checkpoint, a run's folder, or ``last`` for the newest
                run of this name with the same settings and seed. ``rounds`` may be larger than
                before, unless the method's numbers depend on it.
            config: The resolved configuration as YAML, stored with the run and compared on a
                resume. Without it, one that loop, method and data tell is stored, and only the
                seed, the method and its network, the partition of the data, and privacy with its
                sampler are compared.

        Raises:
            NonFiniteError: See ``on_nonfinite``; or the server's numbers are not finite, or no
                client was left in any round.
            CheckpointError: ``ckpt_path`` cannot be used.
            BusyError: Another process is working on the run.
            KeyboardInterrupt: The run was interrupted; its checkpoint was saved.
        """
        with self._training(module, data, ckpt_path, config) as federation, federation.computing():
            for _ in self._rounds(federation):
                pass
        return federation.run

    def rounds_of(
        self,
        module: ClientModule,
        data: FederatedData,
        ckpt_path: str | None = None,
        config: str | None = None,
    ) -> Iterator[tuple[Run, RoundResult]]:
        """Train as :meth:`fit` does, and yield the run after each round, for your own outer loop.

        Example::

            for run, result in loop.rounds_of(module, data):
                print(result.metrics["test/personal/acc"], run.server.round, len(run.kept))

        The loop's body runs before the callbacks of the round. It may replace the server's state
        (``run.server``) and what clients keep (``run.kept``): the round's checkpoint then holds the
        new values, and the next round starts from them. ``run.callbacks`` lists all callbacks.
        Leaving the loop early interrupts the run, which can be resumed.

        The arguments and errors are those of :meth:`fit`.
        """
        with self._training(module, data, ckpt_path, config) as federation:
            rounds = self._rounds(federation)
            try:
                while (result := _next(federation, rounds)) is not None:
                    yield federation.run, result
            finally:
                with federation.computing():
                    rounds.close()

    def test(
        self,
        module: ClientModule,
        data: FederatedData,
        ckpt_path: str | None = None,
        config: str | None = None,
    ) -> dict[str, float]:
        """Test all models of a checkpoint, or the initial models, as after a round.

        The arguments are those of :meth:`fit`.

        Raises:
            CheckpointError: ``ckpt_path`` cannot be used.
        """
        wanted = Wanted(self, module, data, ckpt_path, config)
        with prepared(wanted) as federation, federation.computing():
            state = federation.run.server
            row, clients = federation.evaluator.evaluate(members(data), {}, state, state)
            if federation.newcomers.clients:
                scores, unseen = federation.newcomers.evaluate(state, row)
                row, clients = row | scores, clients + unseen
            federation.evaluator.undefined(clients)
        return row

    def personal(
        self,
        module: ClientModule,
        data: FederatedData,
        ckpt_path: str,
        client: int,
        config: str | None = None,
    ) -> None:
        """Turn ``module`` into one client's personalised model of a checkpoint.

        Raises:
            CheckpointError: ``ckpt_path`` cannot be used.
            ValueError: There is no such client.
        """
        if client not in (clients := everyone(data)):
            raise ValueError(
                f"there is no client {client}; the clients are {clients[0]} to {clients[-1]}"
            )
        wanted = Wanted(self, module, data, ckpt_path, config)
        with prepared(wanted) as federation, federation.computing():
            federation.run.personal(client)

    def export(
        self,
        module: ClientModule,
        data: FederatedData,
        ckpt_path: str,
        client: int,
        file: str | Path,
        config: str | None = None,
    ) -> None:
        """Write one client's personalised model as a Lightning checkpoint.

        ``load_from_checkpoint(file, net=...)`` reads it. ``module`` is left as that model, on the
        CPU.

        Raises:
            CheckpointError: ``ckpt_path`` cannot be used, or ``file`` is the place of a checkpoint.
            ValueError: There is no such client.
            OSError: The file cannot be written.
        """
        source = find_checkpoint(ckpt_path, Wanted(self, module, data, ckpt_path, config))
        output = beside(Path(file), source)
        self.personal(module, data, str(source), client, config)
        export.write(output, module.cpu(), module.hparams)

    def predict(
        self,
        module: ClientModule,
        data: FederatedData,
        ckpt_path: str,
        split: Split = "test",
        config: str | None = None,
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield each client, the predictions of its personalised model, and the targets.

        Clients without samples in the split are left out; the order within a client is the stored
        one. Predictions are probabilities, or values in regression.

        Raises:
            CheckpointError: ``ckpt_path`` cannot be used.
        """
        with prepared(Wanted(self, module, data, ckpt_path, config)) as federation:
            for client in everyone(data):
                samples = data.split(client, split)
                if len(samples) == 0:
                    continue
                with federation.computing():
                    federation.run.personal(client)
                    with torch.inference_mode():
                        outputs, targets = client_round.outputs(federation.context, samples)
                predicted = data.task.predictions(outputs)
                yield client, predicted.cpu(), data.task.targets(targets).cpu()

    @contextmanager
    def _training(
        self, module: ClientModule, data: FederatedData, ckpt_path: str | None, config: str | None
    ) -> Iterator[Federation]:
        wanted = Wanted(self, module, data, ckpt_path, config, trains=True)
        with prepared(wanted) as federation, federation.folder():
            federation.run.config = config or described(self.given, module, data)
            if ckpt_path is None:
                load_states(self.callbacks, {})
            yield federation

    def _rounds(self, federation: Federation) -> Generator[RoundResult, None, None]:
        """Run the rounds; yield each one before the callbacks are called."""
        run = federation.run

        def done(result: Result) -> None:
            for callback in self.callbacks:
                callback.on_result(run, result)

        rounds, open_ones = federation.rounds(done), list[Callback]()
        before, waiting = run.latest, list[Callback]()
        try:
            for callback in self.callbacks:
                callback.on_fit_start(run)
                open_ones.append(callback)
            while not run.ends:
                before, waiting = run.latest, [*self.callbacks]
                result = next(rounds)
                yield result
                while waiting:
                    waiting.pop(0).on_round_end(run, result)
            soundness.check_anything_trained(run.history)
            # Records come last: a run with a summary is taken for a finished one.
            for callback in sorted(self.callbacks, key=lambda one: isinstance(one, Records)):
                callback.on_fit_end(run)
                open_ones.remove(callback)
        except BaseException as cause:
            interrupt(run, [] if run.latest is before else waiting, open_ones, cause)
            raise


def _next(federation: Federation, rounds: Iterator[RoundResult]) -> RoundResult | None:
    with federation.computing():
        return next(rounds, None)


def _fabric(accelerator: str, devices: int | str, precision: Precision) -> Fabric:
    """Return device and precision of a run.

    Raises:
        ValueError: There is no such device, or more than one is asked for.
    """
    try:
        fabric = core_devices.fabric(accelerator, devices, precision)
    except (RuntimeError, MisconfigurationException) as error:
        raise ValueError(
            f"accelerator {accelerator}, devices {devices}: {error} (accelerator auto takes what "
            "there is)"
        ) from error
    if fabric.world_size > 1:
        raise ValueError(
            f"devices must name one device, got {devices}; an engine spreads a run over workers"
        )
    return fabric
