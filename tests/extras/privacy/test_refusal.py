"""Which methods run privately: the page's table is that of the methods."""

from tests.extras.privacy import private_table


def test_the_page_has_the_table_of_all_methods():
    text = private_table.PAGE.read_text("utf-8")
    assert text == private_table.written(text), (
        "write it anew: python -m tests.extras.privacy.private_table"
    )
