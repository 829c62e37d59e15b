"""The same raw requests to Tidegate and to Apache Kafka, and their answers field by field."""
