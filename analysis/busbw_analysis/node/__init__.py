"""One node: memory, storage, roofline, hierarchy, and links between GPUs."""
