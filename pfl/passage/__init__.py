"""What happens to an upload between a client's round and the server, at both ends."""
