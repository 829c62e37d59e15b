"""`python -m tidegate.client.command_line`."""

import sys

from . import main

if __name__ == "__main__":
    # kio registers strategies for its types where it finds hypothesis: a quarter of a command's CPU time
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    main()
