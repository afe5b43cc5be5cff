"""What should be: cost models of algorithms, fits of measured times, and what follows for what was not measured."""
