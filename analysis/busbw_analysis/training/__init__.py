"""Traffic, memory, step time, limits, storage and rooflines of a training layout, by formula."""
