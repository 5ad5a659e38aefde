"""Links only move bytes. What the bytes mean is the peer's business."""
