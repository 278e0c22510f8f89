"""A shop: a FastAPI application, and the workflows that it starts, signals and shows."""
