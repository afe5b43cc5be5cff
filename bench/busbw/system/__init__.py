"""The machine: its hardware, and the peak rates of that hardware."""
