"""What holds for all tests.

tidegate is imported before anything else can import grpc: the order that `tidegate/__init__.py` asks of every program.  No
property has a deadline: how long an example takes says something about the machine only.
"""

import hypothesis
import tidegate

assert tidegate.__version__

hypothesis.settings.register_profile("tidegate", deadline=None)
hypothesis.settings.load_profile("tidegate")
