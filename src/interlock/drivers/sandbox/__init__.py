"""The sandbox of driver servers: which hosts they may connect to, and how this is enforced."""
