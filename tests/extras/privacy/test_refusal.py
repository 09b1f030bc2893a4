"""Which methods run privately: the page's table is that of the methods."""

from tests.extras.privacy import private_table


def test_the_page_has_the_table_of_all_methods():
    text = private_table.PAGE.read_text("utf-8")
    assert text == private_table.written(text), (
        "write it anew: python -m tests.extras.privacy.private_table"
    )


def test_who_is_refused():
    refused = {cells[0]: cells[-1] for cells in private_table.rows() if cells[-1] != "-"}
    assert refused.keys() == {
        *("APPLE", "CFL", "FedAMP", "FedASVariant", "FedCAC", "FedDBE", "FedFomo", "FedGH"),
        *("FedMD", "FedPAC", "FedProto", "FedSimSup", "FedSimSupSerial", "FedTGP", "IFCA"),
        *("Local", "PFedFDA", "PFedHN", "PFedSim"),
    }
    # Each sentence names the entry, but that of the method that sends none.
    assert all("`" in why for name, why in refused.items() if name != "Local")
