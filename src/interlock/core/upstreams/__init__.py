"""What is spoken downstream: supervisors keep alive, peers speak MCP, links move bytes."""
