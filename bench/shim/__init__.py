"""What the front libraries cost over the driver alone."""
