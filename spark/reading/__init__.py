"""What a read does: which ranges it has, and how a task gets the records of each, or their number."""
