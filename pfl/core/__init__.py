"""The base layer: interfaces of methods and data, and the data that move in a round."""
