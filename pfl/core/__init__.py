"""The lowest floor: what methods and data stand on, and what moves in a round."""
