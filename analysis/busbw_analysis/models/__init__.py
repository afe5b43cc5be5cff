"""Models: the cost of algorithms, links and networks, in closed form and simulated."""
