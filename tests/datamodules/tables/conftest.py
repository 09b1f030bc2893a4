import pytest


@pytest.fixture
def parquet(tmp_path):
    """Write columns as a Parquet file."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def write(columns, name="t.parquet"):
        table = pyarrow.table({name: [*values] for name, values in columns.items()})
        parquet.write_table(table, tmp_path / name)
        return str(tmp_path / name)

    return write
