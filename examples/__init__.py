"""Methods of one's own, as the README shows them."""
