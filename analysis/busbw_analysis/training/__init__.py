"""What training moves, keeps and waits for, by formula: traffic, memory, limits, storage and rooflines of a layout."""
