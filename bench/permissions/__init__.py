"""What Tidegate and Apache Kafka answer to a user who lacks a right: every request, every right."""
