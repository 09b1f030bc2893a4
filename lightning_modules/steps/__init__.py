"""Steps of a round that several methods take: phases and passes, their statistics, and servers."""
