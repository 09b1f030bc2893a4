"""WISDM: the activities of 36 people, from the accelerometers of their phones."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import pandas as pd

from datamodules.checks import existing
from datamodules.moments import Standardise
from datamodules.tables.sources import read_table
from datamodules.tables.table import Table
from datamodules.tables.tabular import TabularData
from pfl.core.places import Place

_PLACE = Place("WISDM_ar_v1.1_transformed.arff is in https://www.cis.fordham.edu/wisdm/dataset.php")


class WISDM(TabularData):
    """5,418 windows of ten seconds by 36 people; 6 activities, 43 features.

    A client is a person. Recordings are ordered by activity, so that a person's last quarter would
    mostly contain activities that did not occur before. The column ``time`` is therefore the
    progress of each activity of a person, from 0 to 1; with ``test_protocol: future``, a person is
    tested on the latest windows of each activity. 474 windows lack the time between peaks.

    Source: Kwapisz, Weiss, Moore, "Activity recognition using cell phone accelerometers", SensorKDD
    2010, which its authors ask to cite; they state no licence. Version 1.1.

    Args:
        path: The file ``WISDM_ar_v1.1_transformed.arff``.
        test_protocol: As in :class:`FederatedDataModule`.
        standardise: As in :class:`TabularData`.
        missing: As in :class:`TabularData`.
        options: As in :class:`TabularData`.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: The file has another form.
    """

    own_clients = True

    def __init__(
        self,
        path: Annotated[str, _PLACE] = "data/wisdm.arff",
        *,
        test_protocol: Literal["pooled", "future"] = "future",
        standardise: Standardise = "train",
        missing: Literal["drop", "mean"] = "mean",
        **options: Any,
    ) -> None:
        super().__init__(
            path,
            "class",
            client_column="user",
            time_column="time",
            test_protocol=test_protocol,
            standardise=standardise,
            missing=missing,
            **options,
        )

    def table(self) -> Table:
        """Read the file, replacing each window's number by the time within its activity."""
        table = read_table(existing(self.path, hint=_PLACE.hint))
        kinds = [table[name].labels() for name in ("user", "class")]
        order = pd.Series(table.numbers("UNIQUE_ID")).sort_values(kind="stable").index
        of_each = pd.DataFrame(dict(enumerate(kinds))).loc[order].groupby([0, 1])
        time = (of_each.cumcount() + 0.5) / of_each[0].transform("size")
        frame = table.frame.drop(columns="UNIQUE_ID").assign(time=time)
        return replace(table, frame=frame)
