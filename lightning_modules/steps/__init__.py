"""Parts of a round that several methods share: phases and passes, their statistics, and servers."""
