"""The ledger: cells of papers' tables that were run at full length, beside the printed numbers.

``python -m benchmarks.ledger`` writes its page from the folders of ``results/ledger``.
"""
