"""FederatedLoop, with which a user runs an experiment."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from torch import nn

from pfl import callbacks, federation
from pfl.callbacks import foreign
from pfl.core.data import FederatedData
from pfl.core.seeds import derive, scoped
from pfl.core.types import Result, RoundResult, Split
from pfl.core.waits import of_run
from pfl.disk.writing import csv_text, write
from pfl.federation.described import described
from pfl.federation.run import Callback, Run, load_states
from pfl.federation.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from pfl.core.client import ClientModule
    from pfl.federation.rounds import Federation

    DataT = TypeVar("DataT", bound=FederatedData)
    Method: TypeAlias = ClientModule | Callable[[DataT], ClientModule]


class FederatedLoop(Settings):
    """Runs a federation: any method, any data, any engine.

    Example::

        loop = FederatedLoop(rounds=20, sampler=UniformSampler(0.5))
        data = CIFAR10(num_clients=20, partition=Dirichlet(0.1), download=True)
        run = loop.fit(lambda data: FedPer(CNN2(data.num_classes)), data)
        print(run.summary["test/personal/acc/last"])

    The options are those of :class:`pfl.federation.settings.Settings`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for callback in self.callbacks or ():
            if not isinstance(callback, Callback):  # such as one of Lightning's
                raise TypeError(f"callbacks: {foreign.refusal(type(callback).__name__)}")

    @property
    def called(self) -> list[Callback]:
        """Return the user's callbacks, and those that other options require."""
        called = [*(self.callbacks or ()), *map(callbacks.LightningLogger, self.loggers or ())]
        if self.default_root_dir is not None:
            # Records come first: if another callback fails, a resume drops rows beyond the
            # checkpoint, and none is missing.
            called = [callbacks.Records(), *called, callbacks.Checkpoint(self.checkpoint_every)]
        return [*called, callbacks.ProgressBar()] if self.progress else called

    def fit(
        self,
        module: Method[DataT],
        data: DataT,
        ckpt_path: str | None = None,
        config: str | None = None,
    ) -> Run:
        """Train the federation and return the finished run.

        Args:
            module: The method, with its network's initial weights; or a function that builds it
                from the data; its random choices then derive from ``seed``, as those of ``pfl fit``
                do.
            data: The federation's data.
            ckpt_path: What to resume from: a checkpoint, a run's folder, or ``last`` for the newest
                run of this name with the same settings and seed. ``rounds`` may be larger than
                before, unless the method's numbers depend on it.
            config: The resolved configuration as YAML, stored with the run and compared on a
                resume. Without it, one made from loop, method and data is stored, and only the
                seed, the method and its network, the partition of the data, and privacy with its
                sampler are compared.

        Raises:
            NonFiniteError: See ``on_nonfinite``; or the server's numbers are not finite, or no
                client was left in any round.
            CheckpointError: ``ckpt_path`` cannot be used.
            BusyError: Another process is working on the run.
            KeyboardInterrupt: The run was interrupted; its checkpoint was saved.
        """
        with self._training(module, data, ckpt_path, config) as running, running.computing():
            for _ in self._rounds(running):
                pass
        return running.run

    def rounds_of(
        self,
        module: Method[DataT],
        data: DataT,
        ckpt_path: str | None = None,
        config: str | None = None,
    ) -> Iterator[tuple[Run, RoundResult]]:
        """Train as :meth:`fit` does; after each round, yield the run and the result of the round.

        Example::

            for run, result in loop.rounds_of(module, data):
                print(result.metrics["test/personal/acc"], run.server.round, len(run.kept))

        The loop's body runs before the callbacks of the round. It may replace the server's state
        (``run.server``) and what clients keep (``run.kept``): the round's checkpoint then holds the
        new values, and the next round starts from them. ``run.callbacks`` lists all callbacks.
        Leaving the loop early interrupts the run, which can be resumed.

        The arguments and errors are those of :meth:`fit`.
        """
        with self._training(module, data, ckpt_path, config) as running:
            rounds = self._rounds(running)
            try:
                while (result := _next(running, rounds)) is not None:
                    with running.suspended():
                        yield running.run, result
            finally:
                with running.computing():
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
        wanted = federation.Wanted(self, module, data, ckpt_path, config)
        with federation.prepared(wanted) as running, running.computing():
            return running.measured()

    def tabulate(
        self,
        table: Any,  # noqa: ANN401
        module: ClientModule,
        data: FederatedData,
        ckpt_path: str,
        config: str | None = None,
    ) -> Path:
        """Measure a checkpoint and write a table into its run folder; return the file.

        ``table`` is one of :func:`pfl.federation.evaluation.tables`; the other arguments are those
        of :meth:`fit`.

        Raises:
            CheckpointError: The checkpoint cannot be used, or is not in a run folder.
        """
        wanted = federation.Wanted(self, module, data, ckpt_path, config)
        with federation.prepared(wanted) as running, running.computing():
            if (folder := running.origin) is None:
                raise federation.CheckpointError(
                    f"the checkpoint {ckpt_path} is not in a run folder"
                )
            write(folder / table.FILE, csv_text(list(table.rows(running.evaluator))))
        return folder / str(table.FILE)

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
        if not 0 <= client < data.num_clients:
            raise ValueError(
                f"there is no client {client}; the clients are 0 to {data.num_clients - 1}"
            )
        wanted = federation.Wanted(self, module, data, ckpt_path, config)
        with federation.prepared(wanted) as running, running.computing():
            running.run.personal(client)

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
        from pfl.core.export import write as write_export

        source = federation.find_checkpoint(
            ckpt_path, federation.Wanted(self, module, data, ckpt_path, config)
        )
        output = federation.beside(Path(file), source)
        self.personal(module, data, str(source), client, config)
        write_export(output, module.cpu(), module.hparams)

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
        wanted = federation.Wanted(self, module, data, ckpt_path, config)
        with federation.prepared(wanted) as running:
            for client in range(data.num_clients):
                samples = data.split(client, split)
                if len(samples) == 0:
                    continue
                with running.computing():
                    predicted, targets = running.predicted(client, samples)
                yield client, predicted.cpu(), targets.cpu()

    @contextmanager
    def _training(
        self, module: Method[DataT], data: DataT, ckpt_path: str | None, config: str | None
    ) -> Iterator[Federation]:
        waits = of_run()
        # A class and a network can be called, too, but are not functions of the data.
        if callable(module) and not isinstance(module, type | nn.Module):
            with scoped(derive(self.seed, "init")):
                module = module(data)
        module = cast("ClientModule", module)
        wanted = federation.Wanted(self, module, data, ckpt_path, config, self.called, True, waits)
        with federation.prepared(wanted) as running, running.folder():
            running.run.config = config or described(self.options, module, data)
            if ckpt_path is None:
                load_states(running.run.callbacks, {})
            yield running

    def _rounds(self, running: Federation) -> Generator[RoundResult, None, None]:
        """Run the rounds; yield each one before the callbacks are called."""
        run = running.run

        def done(result: Result) -> None:
            for callback in run.callbacks:
                callback.on_result(run, result)

        rounds, open_ones = running.rounds(done), list[Callback]()
        before, waiting = run.latest, list[Callback]()
        try:
            for callback in run.callbacks:
                callback.on_fit_start(run)
                open_ones.append(callback)
            while not run.ends:
                before, waiting = run.latest, [*run.callbacks]
                result = next(rounds)
                yield result
                while waiting:
                    waiting.pop(0).on_round_end(run, result)
            running.conclude()
            # Records come last: a run with a summary counts as finished.
            for callback in sorted(
                run.callbacks, key=lambda one: isinstance(one, callbacks.Records)
            ):
                callback.on_fit_end(run)
                open_ones.remove(callback)
        except BaseException as cause:
            callbacks.interrupt(run, [] if run.latest is before else waiting, open_ones, cause)
            raise


def _next(running: Federation, rounds: Iterator[RoundResult]) -> RoundResult | None:
    with running.computing():
        return next(rounds, None)
