"""busbw_analysis: reads run folders and judges them; it measures nothing and never imports torch."""
