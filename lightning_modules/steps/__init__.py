"""Steps of a round that several methods take: parts of plans, statistics, servers."""
