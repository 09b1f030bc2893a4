"""The division of samples over clients."""
