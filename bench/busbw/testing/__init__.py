"""Stand-ins for machines, shipped so that your tests need none.

``busbw.testing.fakes`` plays clocks and ranks, ``faults`` breaks what works, ``meanings`` says what every operation
means, ``synthetic`` writes runs whose truth is known, and ``noise`` draws launches that scatter like real ones. Nothing
is imported here: only the last two do without torch.
"""
