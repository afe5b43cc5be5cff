"""Models: what algorithms, links and networks cost, in closed form and simulated."""
