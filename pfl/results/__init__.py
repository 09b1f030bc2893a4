"""Reading and plotting run folders, without importing torch."""
