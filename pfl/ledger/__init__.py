"""The ledger: cells of papers' tables that this project has run at full length."""
