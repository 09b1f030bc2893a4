"""Tables of a checkpoint on demand, and their pictures: reliability, and models on all data."""
