"""The ground floor: the loop, the engines and the data that moves between them."""
