"""What is prepared on this node: one versioned file per claim, and the proof that it all fits."""
