"""The ledger: cells of papers' tables that the project has run at their own length."""
