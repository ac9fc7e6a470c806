"""`python -m ringreduce.tuning`: one rank of `ringreduce tune`, or the whole of it."""

import sys

from ringreduce.tuning.cli import main

sys.exit(main(sys.argv[1:]))
