"""What the host sees of the GPUs beside their inventory: who uses them, and what befalls them."""
