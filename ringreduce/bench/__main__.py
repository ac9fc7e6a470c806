"""`python -m ringreduce.bench`: one rank of `ringreduce bench`, or the whole of it."""

import sys

from ringreduce.bench.cli import main

sys.exit(main(sys.argv[1:]))
