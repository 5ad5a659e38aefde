"""The HTTP server: uvicorn's protocol with a fast path, the host and origin guard, the routes."""
