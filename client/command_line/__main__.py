"""`python -m tidegate.client.command_line`."""

from . import main

if __name__ == "__main__":
    main()
