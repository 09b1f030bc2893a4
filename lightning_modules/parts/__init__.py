"""What several methods share, each piece written once."""
