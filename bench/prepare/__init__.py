"""Measures NodePrepareResources as kubelet sees it, with a real API server."""
