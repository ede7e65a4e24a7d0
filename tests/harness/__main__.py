"""`python -m tests.harness`."""

import sys

from tests.harness.cli import main

sys.exit(main())
