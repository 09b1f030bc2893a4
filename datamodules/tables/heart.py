"""UCI Heart Disease: patients of four hospitals, with FLamby's training and test samples."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd

from datamodules.checks import existing
from datamodules.moments import Standardise
from datamodules.tables.sources import read_table
from datamodules.tables.table import Table
from datamodules.tables.tabular import TabularData
from pfl.core.places import Place

_PLACE = Place(
    "the four files processed.<hospital>.data are in "
    "https://archive.ics.uci.edu/static/public/45/heart+disease.zip"
)
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
# The columns of the files. As in FLamby, three that most hospitals did not record are left out.
_COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
_LEFT_OUT = ("slope", "ca", "thal")


class HeartDisease(TabularData):
    """740 patients of four hospitals, of whom 0.46, 0.38, 0.98 and 0.78 are ill.

    A client is a hospital: Cleveland, Hungary, Switzerland and the Veterans Affairs hospital of
    Long Beach, with 303, 261, 46 and 130 patients. The columns slope, ca and thal are dropped, then
    every patient with a missing value. A third of each hospital's patients are official test
    samples (104, 89, 16, 45), drawn as in FLamby (du Terrail et al., NeurIPS 2022): stratified,
    except in Switzerland, where one patient is healthy. The kind of chest pain and the
    electrocardiogram are categories.

    Source: Janosi, Steinbrunn, Pfisterer, Detrano, "Heart Disease", UCI Machine Learning Repository
    1988, doi 10.24432/C52P4X. Licence: CC BY 4.0.

    Args:
        root: The folder of the four files ``processed.<hospital>.data``.
        standardise: As in :class:`TabularData`.
        options: As in :class:`TabularData`, such as ``loss`` and ``metrics``.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file has another form.
    """

    source_argument = "root"
    own_clients = True

    def __init__(
        self,
        root: Annotated[str, _PLACE] = "data/heart",
        *,
        standardise: Standardise = "train",
        **options: Any,
    ) -> None:
        super().__init__(
            root,
            "num",
            task="binary",
            positive=[1, 2, 3, 4],
            negative=0,
            categories=["cp", "restecg"],
            client_column="hospital",
            standardise=standardise,
            missing="drop",
            **options,
        )
        self.root = Path(root).expanduser()

    def table(self) -> Table:
        """Read the complete rows of the four files, official training samples first.

        A hospital that joins later has its own table, with these columns.
        """
        return self._read_files[0] if self._learnt is None else super().table()

    def read(self) -> Mapping[str, Any]:
        """Read the columns as tensors, by name."""
        if self._learnt is not None:
            return super().read()
        names = ["healthy", "ill"]
        return {**super().read(), "num_train": self._read_files[1], "class_names": names}

    @cached_property
    def _read_files(self) -> tuple[Table, int]:
        """Return the table and the number of training samples."""
        # Imported on first use, as this takes half a second.
        from sklearn.model_selection import train_test_split

        parts: dict[str, list[pd.DataFrame]] = {"train": [], "test": []}
        for hospital in HOSPITALS:
            rows = self._rows(hospital)
            ill = rows["num"].astype(float) > 0
            # FLamby does not stratify where a class has two patients or fewer.
            rare = min(ill.sum(), (~ill).sum()) <= 2
            split = train_test_split(
                rows,
                test_size=0.34,
                train_size=0.66,
                random_state=43,
                stratify=None if rare else ill,
            )
            for name, patients in zip(parts, split, strict=True):
                parts[name].append(patients)
        table = Table(self.root, pd.concat(parts["train"] + parts["test"]), "patient")
        return table, sum(map(len, parts["train"]))

    def _rows(self, hospital: str) -> pd.DataFrame:
        """Return the patients of a hospital without missing values, each with its name."""
        file = existing(self.root / f"processed.{hospital}.data", hint=_PLACE.hint)
        table = read_table(file, _COLUMNS)
        table.numbers("num")
        names = [name for name in _COLUMNS if name not in _LEFT_OUT]
        lacking = np.any([table[name].gone for name in names], axis=0)
        patients: pd.DataFrame = table.frame.loc[~lacking, names]
        return patients.assign(hospital=hospital)
