"""The main job on real data: a year of flights in transactions, two kills, a Spark backfill, and every record
checked."""
