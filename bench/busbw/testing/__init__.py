"""Stand-ins for machines, shipped so that your tests need none.

``busbw.testing.fakes`` plays clocks and ranks, ``faults`` breaks what works, ``meanings`` says what every operation
means, and ``synthetic`` writes runs whose truth is known. Nothing is imported here: only the last does without torch.
"""
