"""HTTP: uvicorn's protocol with a fast lane, and the guard at its door."""
