"""`python -m ringreduce.launch.remote`: the agent of one host."""

import sys

from ringreduce.launch.remote.agent import main

if __name__ == "__main__":
    sys.exit(main())
