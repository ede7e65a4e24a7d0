"""The driver's files, and the CDI specs that bring them and the shares into containers."""
