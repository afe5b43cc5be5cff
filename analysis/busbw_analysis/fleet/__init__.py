"""Fleets: which node, link, direction, switch or trunk is slow, decided in rounds; imported by its modules' names."""
