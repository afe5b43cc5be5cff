"""Stand-ins for machines and what they measured.

``testing.fakes`` plays clocks and ranks, ``devices`` a device with a stream, ``reference`` says what every operation
means, ``synthetic`` writes runs whose truth is known, and ``noise`` draws launches that scatter like real ones. Nothing
is imported here: only the last two do without torch.
"""
