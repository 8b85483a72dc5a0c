import sys

from components.command import main
from components.shard_data.step import shard_data

if __name__ == "__main__":
    sys.exit(main(shard_data))
