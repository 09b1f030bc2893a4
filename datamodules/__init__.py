"""Federated data modules: one data set, split over clients, held as one tensor."""
