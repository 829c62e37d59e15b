"""The simulator: ports that lie, and histories that drive real code over them from one seed."""
