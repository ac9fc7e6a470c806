"""`python -m ringreduce` is the ringreduce command."""

import sys

from ringreduce.cli import main

sys.exit(main())
