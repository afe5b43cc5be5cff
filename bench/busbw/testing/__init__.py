"""Stand-ins for machines, shipped so that your tests need none: ``busbw.testing.fakes`` plays clocks, ranks and faults,
``busbw.testing.synthetic`` writes runs whose truth is known.

Nothing is imported here: the fakes load torch, the synthetic runs do not.
"""
