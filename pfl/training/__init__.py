"""One client's round on one device: plans, batches, phases and passes, tests."""
